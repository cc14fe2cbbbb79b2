"""Temperatures: positive numbers that are learnt or follow a schedule, those that hold an entropy, and calibration."""

from softmaxima.base.public import listing
from softmaxima.temperature.calibration import ScalingCalibration, TemperatureCalibration, calibrate_scaling, calibrate_temperature
from softmaxima.temperature.entropy import EntropyTarget, entropy_temperature
from softmaxima.temperature.learnt import LayerwiseTemperature, StateTemperature, Temperature
from softmaxima.temperature.positive import Positive
from softmaxima.temperature.reliability import Reliability, reliability
from softmaxima.temperature.schedules import (
    CosineTemperature,
    ExponentialTemperature,
    GeometricTemperature,
    LinearTemperature,
    TemperatureSchedule,
)

__all__ = [
    "CosineTemperature",
    "EntropyTarget",
    "ExponentialTemperature",
    "GeometricTemperature",
    "LayerwiseTemperature",
    "LinearTemperature",
    "Positive",
    "Reliability",
    "ScalingCalibration",
    "StateTemperature",
    "Temperature",
    "TemperatureCalibration",
    "TemperatureSchedule",
    "calibrate_scaling",
    "calibrate_temperature",
    "entropy_temperature",
    "reliability",
]
__dir__ = listing(globals())
