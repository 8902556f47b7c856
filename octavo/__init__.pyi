# The public API: this list is the only one. Type checkers and editors read it, and `octavo/__init__.py` finds
# the module of each name in it.

from octavo.config import EngineConfig as EngineConfig
from octavo.errors import CapacityError as CapacityError
from octavo.errors import ConfigError as ConfigError
from octavo.errors import DownloadError as DownloadError
from octavo.errors import EngineDeadError as EngineDeadError
from octavo.errors import EventsLostError as EventsLostError
from octavo.errors import ModelNotFoundError as ModelNotFoundError
from octavo.errors import OctavoError as OctavoError
from octavo.errors import RequestError as RequestError
from octavo.errors import UnsupportedError as UnsupportedError
from octavo.errors import WeightError as WeightError
from octavo.frontend.llm import LLM as LLM
from octavo.frontend.llm_engine import LLMEngine as LLMEngine
from octavo.frontend.session import Session as Session
from octavo.frontend.tokenizer import Tokenizer as Tokenizer
from octavo.settings import Settings as Settings
from octavo.types.options import RequestOptions as RequestOptions
from octavo.types.outputs import CompletionOutput as CompletionOutput
from octavo.types.outputs import Logprob as Logprob
from octavo.types.outputs import RequestMetrics as RequestMetrics
from octavo.types.outputs import RequestOutput as RequestOutput
from octavo.types.params import RepetitionDetectionParams as RepetitionDetectionParams
from octavo.types.params import RequestOutputKind as RequestOutputKind
from octavo.types.params import SamplingParams as SamplingParams
from octavo.types.params import StructuredOutputsParams as StructuredOutputsParams
from octavo.types.steps import PauseState as PauseState

__version__: str
