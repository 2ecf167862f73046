"""Watch a training by Lightning's Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from diffscope.errors import MissingExtra

if TYPE_CHECKING:
    from diffscope.monitoring.monitors import Monitor


def callback_of(monitor: Monitor) -> Any:
    """Return a ``lightning.pytorch.Callback`` that measures after each step and hands the numbers to the Trainer's loggers.

    Raises MissingExtra if Lightning is not installed.
    """
    try:
        from lightning.pytorch import Callback
    except ImportError:
        raise MissingExtra(
            "this callback is for Lightning, which is not installed; pip install 'diffscope-attention[lightning]'"
        ) from None

    class MonitorCallback(Callback):
        """Call the monitor, once for each step of the optimizer."""

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self._measure(trainer)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            self._measure(trainer, outputs)

        def _measure(self, trainer: Any, outputs: Any = None) -> None:
            loss = outputs.get("loss") if isinstance(outputs, dict) else None  # divided by the batches of a step
            known = {} if loss is None else {"loss": loss * trainer.accumulate_grad_batches}
            values = monitor.step(trainer.global_step, **known)
            if values:
                with monitor.sending(trainer.global_step):
                    for logger in trainer.loggers:
                        logger.log_metrics(values, step=trainer.global_step)
                        _send_images(logger, monitor.images, trainer.global_step)

    return MonitorCallback()


def _send_images(logger: Any, images: Mapping[str, np.ndarray], step: int) -> None:
    """Hand images to the loggers that show them: TensorBoard's, and those that log images such as W&B's."""
    for name, image in images.items():
        if hasattr(logger, "log_image"):
            logger.log_image(name, [image], step=step)
        elif hasattr(logger.experiment, "add_image"):
            logger.experiment.add_image(name, image, step, dataformats="HWC")
