"""Tasks of Inspect: their own solver and scorers, with a model that waits for turns of the policy."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .chat_forms import Ask, RefusalError, StopEpisode, chat_message, text_of


class InspectTask:
    """A task of Inspect: its dataset, its solver and its scorers."""

    def __init__(self, source: str, arguments: Mapping[str, Any]) -> None:
        import inspect_ai

        self.version = f"inspect_ai {inspect_ai.__version__}"
        self._task: Any = _inspect_task(source, arguments)
        self._samples = list(self._task.dataset)
        self._model: Any = _inspect_model()
        self._refuse()

    def _refuse(self) -> None:
        from inspect_ai._util.registry import is_registry_object, registry_info

        task = self._task
        if task.sandbox is not None or any(sample.sandbox or sample.files or sample.setup for sample in self._samples):
            raise RefusalError("It needs a sandbox of Inspect, which finqa does not start.")
        if not task.scorer:
            raise RefusalError("It has no scorer, so there would be no reward.")
        if task.approval:
            raise RefusalError("It has an approval policy, which finqa does not apply.")
        for scorer in task.scorer:
            name = registry_info(scorer).name if is_registry_object(scorer) else ""
            if "model_graded" in name:
                raise RefusalError(
                    f"Its scorer {name} calls another model for the score, which finqa does not support."
                )

    def tasks(self) -> list[dict[str, Any]]:
        """Return the samples as tasks, all in the split `test`."""
        samples = enumerate(self._samples, start=1)
        return [
            {"id": str(place if sample.id is None else sample.id), "prompt": text_of(sample.input), "split": "test"}
            for place, sample in samples
        ]

    async def play(self, place: int, ask: Ask) -> dict[str, Any]:
        """Run the task's setup, solver and scorers on one sample."""
        from inspect_ai._eval.task.generate import task_generate
        from inspect_ai.model import ChatMessageUser, ModelName, get_model
        from inspect_ai.model._model import init_active_model
        from inspect_ai.scorer import Target, value_to_float
        from inspect_ai.solver import TaskState
        from inspect_ai.solver._fork import set_task_generate
        from inspect_ai.solver._task_state import set_sample_state
        from inspect_ai.util._store import init_subtask_store

        task, sample = self._task, self._samples[place]
        model = get_model("finqa/policy", memoize=False, ask=ask)
        init_active_model(model, task.config)
        asked = [ChatMessageUser(content=sample.input)] if isinstance(sample.input, str) else list(sample.input)
        state = TaskState(
            model=ModelName("finqa/policy"),
            sample_id=sample.id or place + 1,
            epoch=1,
            input=sample.input,
            messages=asked,
            target=Target(sample.target),
            choices=sample.choices,
            metadata=dict(sample.metadata or {}),
        )
        set_sample_state(state)
        init_subtask_store(state.store)

        async def generate(state: Any, tool_calls: Any = "loop", **options: Any) -> Any:
            cache = options.pop("cache", False)
            config = task.config.merge(options)
            return await task_generate(model=model, state=state, tool_calls=tool_calls, cache=cache, config=config)

        set_task_generate(generate)
        try:
            for solver in (*_as_list(task.setup), *_as_list(task.solver)):
                state = await solver(state, generate)
        except StopEpisode:
            pass  # scored in its present state, as Inspect does at a limit
        parts: dict[str, float] = {}
        reasons: list[str] = []
        for scorer in task.scorer:
            score = await scorer(state, state.target)
            if score is not None:
                parts |= _score_parts(_scorer_name(scorer), score.value, value_to_float())
                reasons += [score.explanation] * bool(score.explanation)
        if not parts:
            raise RuntimeError("no scorer returned a score")
        return {"total": next(iter(parts.values())), "parts": parts, "why": "\n".join(reasons)[:2000]}


def _inspect_task(source: str, arguments: Mapping[str, Any]) -> Any:
    from inspect_ai._util.registry import is_registry_object, registry_create, registry_info

    path, _, name = source.partition("@")
    if not path.endswith(".py"):
        return registry_create("task", source, **arguments)
    file = Path(path).expanduser().absolute()
    if not file.is_file():
        raise RefusalError(f"There is no file {path}.", "name a file and a task: inspect:FILE@task")
    sys.path.insert(0, str(file.parent))
    specification = importlib.util.spec_from_file_location(file.stem, file)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[file.stem] = module
    specification.loader.exec_module(module)
    found = {
        key: value
        for key, value in vars(module).items()
        if is_registry_object(value) and registry_info(value).type == "task"
    }
    if not name and len(found) == 1:
        name = next(iter(found))
    if name not in found:
        raise RefusalError(
            f"{path} has {f'no task {name!r}' if name else 'several tasks' if found else 'no task'}; "
            f"it has: {', '.join(found) or 'none'}.",
            f"--environment inspect:{path}@{next(iter(found), 'TASK')}",
        )
    return found[name](**arguments)


def _inspect_model() -> Any:
    from inspect_ai.model import ChatCompletionChoice, ChatMessageAssistant, ModelAPI, ModelOutput, modelapi
    from inspect_ai.tool import ToolCall

    class Answering(ModelAPI):  # type: ignore[misc]
        """A model of Inspect whose replies are the turns of the policy under test."""

        def __init__(self, model_name: str, ask: Ask, config: Any = None, **others: Any) -> None:
            super().__init__(model_name, None, None, [], *([config] if config is not None else []))
            self._ask = ask

        async def generate(self, input: Any, tools: Any, tool_choice: Any, config: Any) -> Any:
            offered = [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters.model_dump(exclude_none=True),
                }
                for tool in tools
            ]
            said = await self._ask([chat_message(message) for message in input], offered)
            calls = [
                ToolCall(id=call["id"], function=call["name"], arguments=json.loads(call["arguments"]))
                for call in said["tool_calls"]
            ]
            message = ChatMessageAssistant(content=said["content"], tool_calls=calls or None, source="generate")
            choice = ChatCompletionChoice(message=message, stop_reason="tool_calls" if calls else "stop")
            return ModelOutput(model=self.model_name, choices=[choice])

    @modelapi(name="finqa")  # type: ignore[untyped-decorator]
    def finqa() -> Any:
        return Answering

    return finqa


def _scorer_name(scorer: Any) -> str:
    from inspect_ai._util.registry import is_registry_object, registry_unqualified_name

    return str(registry_unqualified_name(scorer)) if is_registry_object(scorer) else "score"


def _score_parts(name: str, value: Any, as_float: Callable[[Any], float]) -> dict[str, float]:
    if isinstance(value, Mapping):
        return {f"{name}/{key}": as_float(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return {f"{name}/{place}": as_float(each) for place, each in enumerate(value)}
    return {name: as_float(value)}


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]
