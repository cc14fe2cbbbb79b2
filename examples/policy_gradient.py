"""An actor and a critic on CartPole in one file: a policy over any map, its entropy held by a temperature that is learnt.

Actions are drawn from π(a|s) = map(x(s)/τ)_a, and the network follows the clipped gradient of PPO for advantages of GAE. Of a
sparse map log π has a slope at the actions that it can take, and it can leave others out for good. What explores is τ:
`AdaptiveTemperature` holds the entropy −Ω(π) at a share of that of the uniform policy, which falls to a tenth as training goes on.

    pip install 'softmaxima-lab[rl]'
    python examples/policy_gradient.py --map sparsemax --updates 60
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from cyclopts import Parameter
from torch import Tensor, nn

import softmaxima as sm
from softmaxima_lab.commands.example import checked, count, number, run

SCALE = 50.0  # of values, which are as large as 1/(1 − γ)


def check_map(name: str) -> None:
    sm.policy.Policy(torch.zeros(2), name)  # refuses what is no policy
    sm.policy.AdaptiveTemperature(1e-6, map=name).loss(torch.zeros(2))  # and what has no entropy, or none above 0


SHARE = (lambda value: 0 < value < 1), "between 0 and 1"
WEIGHT = (lambda value: 0 <= value <= 1), "from 0 to 1"
POSITIVE = (lambda value: 0 < value < math.inf), "positive and finite"


@dataclass(frozen=True)
class Options:
    """How to train."""

    map: Annotated[str, checked("What makes probabilities of scores.", check_map)] = "softmax"
    updates: Annotated[int, count("Of the policy.")] = 45
    copies: Annotated[int, count("Of the task, which run side by side.")] = 16
    steps: Annotated[int, count("Of each copy between two updates.", least=2)] = 128
    epochs: Annotated[int, count("Steps of the optimiser in an update.")] = 20
    clip: Annotated[float, number("Of the ratio of policies, as of PPO.", *SHARE)] = 0.2
    discount: Annotated[float, number("γ, of rewards.", *WEIGHT)] = 0.99
    trace: Annotated[float, number("λ, of advantages.", *WEIGHT)] = 0.95
    rate: Annotated[float, number("Of learning, at first.", *POSITIVE)] = 5e-3
    entropy: Annotated[float, number("Share of the largest at first, a tenth of it in the end.", *SHARE)] = 0.95
    seed: Annotated[int, count("Of weights, actions and the task.", least=0)] = 0


def advantages(reward: Tensor, ended: Tensor, begins: Tensor, value: Tensor, options: Options) -> Tensor:
    """GAE(λ) [steps, copies] of values [steps + 1, copies]; a step that only begins an episode passes nothing on."""
    found, after = torch.zeros_like(reward), torch.zeros_like(reward[0])
    for t in reversed(range(len(reward))):  # one that is cut off is worth what its last state is
        goes_on = (~ended[t]).float()
        wrong = reward[t] + options.discount * goes_on * value[t + 1] - value[t]
        after = (wrong + options.discount * options.trace * goes_on * after) * (~begins[t]).float()
        found[t] = after
    return found


def train(options: Options) -> list[float]:
    """The mean return of the episodes that ended in each update; the last one where none did."""
    import gymnasium

    torch.manual_seed(options.seed)
    rng = torch.Generator().manual_seed(options.seed)
    made: Any = gymnasium.make_vec("CartPole-v1", options.copies, vectorization_mode="vector_entry_point")
    actions = int(made.single_action_space.n)
    actor, critic = (nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, n)) for n in (actions, 1))
    found = sm.find_map(options.map)
    assert found.regulariser is not None
    most = -float(found.regulariser(torch.full((actions,), 1 / actions), **found.complete({})))
    held = sm.policy.AdaptiveTemperature(options.entropy * most, sm.Temperature(1.0, 0.01, 100.0), map=options.map)
    optimiser = torch.optim.Adam([*actor.parameters(), *critic.parameters()], options.rate)
    own = torch.optim.Adam(held.parameters(), 0.05)

    state = torch.as_tensor(made.reset(seed=options.seed)[0])
    returns, begins = torch.zeros(options.copies), torch.zeros(options.copies, dtype=torch.bool)
    told: list[float] = []
    for update in range(options.updates):
        held.entropy.fill_(options.entropy * most * 0.1 ** (update / options.updates))
        kept: dict[str, list[Tensor]] = {name: [] for name in ("state", "action", "log_p", "reward", "ended", "begins")}
        over: list[float] = []
        with torch.no_grad():
            for _ in range(options.steps):
                policy = sm.policy.Policy(actor(state), options.map, temperature=held())
                action = policy.sample(generator=rng)
                seen, reward, ended, cut = (torch.as_tensor(each) for each in made.step(action.numpy())[:4])
                step = (state, action, policy.log_prob(action), reward.float(), ended, begins)
                for name, each in zip(kept, step, strict=True):
                    kept[name].append(each)
                returns += reward
                over += returns[ended | cut].tolist()
                returns[ended | cut] = 0.0
                state, begins = seen, ended | cut
            batch = {name: torch.stack(each) for name, each in kept.items()}
            value = SCALE * critic(torch.cat((batch["state"], state[None]))).squeeze(-1)
            gain = advantages(batch["reward"], batch["ended"], batch["begins"], value, options)
            aim, counts = gain + value[:-1], ~batch["begins"]
            gain = (gain - gain[counts].mean()) / (gain[counts].std(correction=0) + 1e-8)
        left = 1 - update / options.updates
        optimiser.param_groups[0]["lr"] = options.rate * left
        for _ in range(options.epochs):
            policy = sm.policy.Policy(actor(batch["state"]), options.map, temperature=held().detach())
            log_p = policy.log_prob(batch["action"])
            taken = counts & (log_p > -torch.inf)  # what a sparse map no longer takes has no slope
            ratio = torch.where(taken, log_p - batch["log_p"], 0.0).exp()
            clipped = ratio.clamp(1 - options.clip * left, 1 + options.clip * left)
            surrogate = torch.minimum(ratio * gain, clipped * gain)
            error = (critic(batch["state"]).squeeze(-1) - aim / SCALE).square()
            optimiser.zero_grad()
            (error[counts].mean() - surrogate[taken].mean()).backward()  # of networks that share nothing
            optimiser.step()
        own.zero_grad()
        held.loss(actor(batch["state"])).backward()
        own.step()
        told.append(sum(over) / len(over) if over else told[-1] if told else 0.0)
    return told


def main(options: Annotated[Options, Parameter(name="*")] = Options()) -> None:
    found = train(options)
    for update in sorted({*range(15, len(found), 15), len(found)}):
        print(f"update {update:3}: mean return {found[update - 1]:.1f}")


if __name__ == "__main__":
    run(main, __doc__, needs=("gymnasium",))
