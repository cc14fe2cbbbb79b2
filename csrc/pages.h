// Memory that the system gives out anew, in pages: of 4 KiB each costs more than the arithmetic on what it holds.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __linux__
#include <sys/mman.h>
#endif

constexpr size_t LARGE = size_t(4) << 20;  // bytes from which on NumPy asks for them too

// Asks for pages of 2 MiB where memory is not yet in use; what is not granted is as it was.
inline void prefer_large_pages([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) noexcept {
#ifdef __linux__
    constexpr uintptr_t PAGE = 4096;
    if (bytes < LARGE) return;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(data) / PAGE * PAGE, end = (reinterpret_cast<uintptr_t>(data) + bytes + PAGE - 1) / PAGE * PAGE;
    (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // NOLINT(performance-no-int-to-ptr)
#endif
}
