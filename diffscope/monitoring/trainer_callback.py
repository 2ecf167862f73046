"""Watch a training by transformers' Trainer."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import TensorBoardCallback, WandbCallback, get_reporting_integration_callbacks
from transformers.trainer_callback import CallbackHandler

from diffscope.errors import first_line
from diffscope.monitoring.record import FOLDER, Record

if TYPE_CHECKING:
    from diffscope.monitoring.monitors import Monitor


class MonitorCallback(TrainerCallback):
    """Measure as the Trainer goes on, and hand the numbers to the trackers that ``report_to`` names.

    The Trainer's own logs stay as they are: they would average the loss over other steps.
    """

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self._reporters: list[TrainerCallback] = []
        self._loss: float | None = None
        self._watches = True  # whether the model of this training can be watched
        self._own: Record | None = None  # the folder in an output_dir

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        kinds = tuple(get_reporting_integration_callbacks(args.report_to))
        self._reporters = [each for each in _callbacks_of_caller() if isinstance(each, kinds)]
        self._loss = None  # the last one is of the training before
        try:
            self._begin(args.output_dir, kwargs.get("model"))
        except Exception as error:
            if self.monitor.strict:
                raise
            self._watches = False
            self.monitor.warn(f"this training is not watched: {first_line(error)}")
            return
        self._measure(args, state, control, kwargs)

    def _begin(self, output_dir: str | None, model: Any) -> None:
        """Watch the Trainer's model, and keep its numbers in its folder unless the monitor has one of its own."""
        if model is not None:
            self.monitor.attach(model)
        if output_dir and self.monitor.record is self._own:
            Path(output_dir).mkdir(parents=True, exist_ok=True)
            self.monitor.keep_in(Path(output_dir) / FOLDER)
            self._own = self.monitor.record

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._measure(args, state, control, kwargs)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        self._loss = (logs or {}).get("loss", self._loss)

    def _measure(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, kwargs: dict[str, Any]) -> None:
        if not self._watches:
            return
        known = {} if self._loss is None else {"loss": self._loss}
        values = self.monitor.step(state.global_step, **known)
        if not values:
            return
        self._loss = None  # a later measurement keeps no loss that is older than this one
        with self.monitor.sending(state.global_step):
            for reporter in self._reporters:
                reporter.on_log(args, state, control, logs=dict(values), **kwargs)
                _send_images(reporter, self.monitor.images, state.global_step)


def _send_images(reporter: TrainerCallback, images: Mapping[str, np.ndarray], step: int) -> None:
    """Hand images to the trackers that show them: TensorBoard and W&B."""
    if isinstance(reporter, TensorBoardCallback) and reporter.tb_writer is not None:
        for name, image in images.items():
            reporter.tb_writer.add_image(name, image, step, dataformats="HWC")
    if isinstance(reporter, WandbCallback) and images:
        wandb = reporter._wandb
        wandb.log({**{name: wandb.Image(image) for name, image in images.items()}, "train/global_step": step})


def _callbacks_of_caller() -> list[TrainerCallback]:
    """Return the callbacks of the Trainer that is calling one of them: it hands them neither itself nor what reports."""
    frame = inspect.currentframe()
    while frame is not None:
        handler = frame.f_locals.get("self")
        if isinstance(handler, CallbackHandler):
            return list(handler.callbacks)
        frame = frame.f_back
    return []
