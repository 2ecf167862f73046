"""The public names of diffscope; each is imported when it is first used."""

from diffscope import attention as attention
from diffscope import attribution as attribution
from diffscope import conformance as conformance
from diffscope import edits as edits
from diffscope import errors as errors
from diffscope import families as families
from diffscope import figures as figures
from diffscope import hypotheses as hypotheses
from diffscope import instruments as instruments
from diffscope import lab as lab
from diffscope import lens as lens
from diffscope import models as models
from diffscope import monitoring as monitoring
from diffscope import prompts as prompts
from diffscope import readings as readings
from diffscope import stats as stats
from diffscope import storage as storage
from diffscope import tables as tables
from diffscope import tasks as tasks
from diffscope import views as views
from diffscope.capture import Capture as Capture
from diffscope.capture.comparison import Comparison as Comparison
from diffscope.capture.comparison import compare as compare
from diffscope.conformance import check as check
from diffscope.errors import *
from diffscope.figures import figure as figure
from diffscope.monitoring import monitor as monitor
from diffscope.opening import open as open
from diffscope.prompts import Chars as Chars
from diffscope.prompts import SpanExpr as SpanExpr
from diffscope.scope import Scope as Scope
from diffscope.scope import load as load
from diffscope.scope.denoising import denoising_steps as denoising_steps
from diffscope.scope.denoising import measure_steps as measure_steps
from diffscope.stats.averaging import average as average
from diffscope.stats.sample import QuerySample as QuerySample

__version__: str
