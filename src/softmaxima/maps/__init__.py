"""Maps from scores to probabilities: one file a map, each with its literal reference, its sensitivity and its claims."""

# isort: off
from softmaxima.base.public import listing
from softmaxima.maps.softmax import Softmax, Softmin, softmax, softmin  # the first of every list of maps

# isort: on
from softmaxima.engine.contract import REGISTRY, Cost, Map, Parameter, Properties, find_map, register
from softmaxima.engine.parts import InParts, in_parts
from softmaxima.maps._module import MapModule
from softmaxima.maps.budget_sparsemax import BudgetSparsemax, budget_sparsemax
from softmaxima.maps.elastic_softmax import ElasticSoftmax, elastic_softmax
from softmaxima.maps.entmax import Entmax, entmax
from softmaxima.maps.entmax15 import Entmax15, entmax15
from softmaxima.maps.eps_softmax import EpsSoftmax, eps_softmax
from softmaxima.maps.fusedmax import Fusedmax, fusedmax
from softmaxima.maps.log_softmax import LogSoftmax, log_softmax
from softmaxima.maps.minp_softmax import MinPSoftmax, minp_softmax
from softmaxima.maps.normmax import Normmax, normmax
from softmaxima.maps.oscarmax import Oscarmax, oscarmax
from softmaxima.maps.perturb_max import PerturbMax, perturb_max
from softmaxima.maps.proportional import Proportional, proportional
from softmaxima.maps.rectified_softmax import RectifiedSoftmax, rectified_softmax
from softmaxima.maps.sparsemax import Sparsemax, sparsemax
from softmaxima.maps.taylor_softmax import TaylorSoftmax, taylor_softmax
from softmaxima.maps.topk_softmax import TopKSoftmax, topk_softmax
from softmaxima.maps.topp_softmax import TopPSoftmax, topp_softmax

__all__ = [
    "REGISTRY",
    "BudgetSparsemax",
    "Cost",
    "ElasticSoftmax",
    "Entmax",
    "Entmax15",
    "EpsSoftmax",
    "Fusedmax",
    "InParts",
    "LogSoftmax",
    "Map",
    "MapModule",
    "MinPSoftmax",
    "Normmax",
    "Oscarmax",
    "Proportional",
    "Parameter",
    "PerturbMax",
    "Properties",
    "RectifiedSoftmax",
    "Softmax",
    "Softmin",
    "Sparsemax",
    "TaylorSoftmax",
    "TopKSoftmax",
    "TopPSoftmax",
    "budget_sparsemax",
    "elastic_softmax",
    "entmax",
    "entmax15",
    "eps_softmax",
    "find_map",
    "fusedmax",
    "in_parts",
    "log_softmax",
    "minp_softmax",
    "normmax",
    "oscarmax",
    "perturb_max",
    "proportional",
    "rectified_softmax",
    "register",
    "softmax",
    "softmin",
    "sparsemax",
    "taylor_softmax",
    "topk_softmax",
    "topp_softmax",
]
__dir__ = listing(globals())
