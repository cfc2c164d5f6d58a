"""Types of the files with attempts: trajectories, samples, candidates with their scores, and preference pairs."""

from __future__ import annotations

from typing import Any, Literal

from written_types import ABSENT, Written

from finqa_cli.types.tasks import Role
from finqa_cli.types.trajectories import Status

Components = dict[str, float]


class TaskRecord(Written):
    """The question of an attempt."""

    id: str
    """Stable id, unique in its data set."""
    split: str
    """Split, such as `train`, `dev` or `test`."""
    cluster: str
    """Cluster for intervals, such as the company."""
    kind: str
    """Question type; may be empty."""
    prompt: str
    """The question as the agent reads it."""


class MessageRecord(Written):
    """One message of the opening prompt."""

    role: Role
    """Who speaks."""
    content: str
    """Text of the message."""
    images: list[str] = ABSENT
    """Images after the text: data URIs or web addresses; absent without images."""


class FunctionRecord(Written):
    """The function of a tool."""

    name: str
    """Name of the tool."""
    description: str
    """What the tool does, as the model reads it."""
    parameters: dict[str, Any]
    """JSON Schema of the arguments, of type object."""


class ToolRecord(Written):
    """A tool in the form of OpenAI's API."""

    type: Literal["function"]
    """Kind of the tool."""
    function: FunctionRecord
    """The function."""


class CallRecord(Written):
    """A tool call that was parsed from the model's text."""

    name: str
    """Name of the tool."""
    arguments: dict[str, Any]
    """Arguments as the model wrote them."""


class ObservationRecord(Written):
    """Reply of the environment to a call or a text."""

    text: str
    """What the model reads."""
    done: bool
    """The episode is over."""
    is_error: bool
    """The call was refused or failed because of a mistake of the model."""
    images: list[str] = ABSENT
    """Images after the text; absent without images."""


class StepRecord(Written):
    """A further call of a turn, with its reply."""

    tool_call: CallRecord | None
    """The call."""
    observation: ObservationRecord | None
    """The reply; null if the episode ended before the call was carried out."""


class TurnRecord(Written):
    """One generation of the model, and the reply to it."""

    text: str
    """Decoded completion."""
    tool_call: CallRecord | None
    """The first call; null if none could be parsed."""
    parse_error: str
    """Why no call could be parsed; empty otherwise."""
    observation: ObservationRecord | None
    """The reply; null if the episode ended before there was one."""
    stop: str
    """`stop` (a stop token was sampled) or `length` (the token limit)."""
    policy_version: int
    """Number of the policy that generated the turn."""
    prompt_tokens: int | None
    """Number of tokens that were appended before the completion."""
    completion_tokens: int | None
    """Number of sampled tokens; 0 for engines without tokens."""
    seconds: float
    """Wall-clock seconds of generation and reply."""
    words: str = ABSENT
    """Text before the call; absent without a call."""
    further_steps: list[StepRecord] = ABSENT
    """Calls after the first; absent without further calls."""
    restarts: Literal[True] = ABSENT
    """The chat template rewrote earlier turns, so that a new token sequence begins here; absent otherwise."""
    prompt_token_ids: list[int] = ABSENT
    """Ids that were appended before the completion; only with `run.save_token_ids`, and always of `finqa sample`."""
    completion_token_ids: list[int] = ABSENT
    """Sampled ids, as `prompt_token_ids`."""
    logprobs: list[float] = ABSENT
    """Log-probability of each sampled id in nats, as `prompt_token_ids`."""


class ReadNumbers(Written):
    """Numbers that were read from two texts, as texts (`12.5%` is `0.125`); empty if there are none."""

    answer: str
    """Numbers in the answer."""
    truth: str
    """Numbers in the truth."""


class Attempt(Written):
    """One attempt at a question."""

    schema_version: Literal[1]
    """Version of the layout of this line."""
    iteration: int = ABSENT
    """Iteration of the training; 0 in an evaluation and for samples."""
    id: str
    """Unique in the run: `PHASE/ITERATION/.../TASK/MEMBER`, with `-again` if it was played again after a fault."""
    task: TaskRecord
    """The question."""
    member: int
    """Number of the attempt in its group, from 0."""
    seed: int
    """Seed of all random choices of the attempt."""
    status: Status
    """Why it ended. Attempts with an error of sandbox, engine or environment are faults, which are never graded."""
    error: str
    """One line about the fault or limit; empty on completion."""
    reward: float | None
    """Total reward; null for a fault."""
    components: Components
    """Named parts of the reward."""
    explanation: str
    """The grader's reason; empty if it gives none."""
    weight: float = ABSENT
    """Factor on the attempt's advantage; absent if it is 1."""
    retries: int
    """Earlier attempts at the same member that ended in a fault."""
    recoveries: int
    """How often the episode continued in a new session after its connection was lost."""
    seconds: float
    """Wall-clock seconds of the last try."""
    metadata: dict[str, Any]
    """Further values; `usage` has the tokens and the cost that a chat engine reported."""
    messages: list[MessageRecord]
    """Opening prompt."""
    tools: list[ToolRecord]
    """Offered tools; empty for environments of texts."""
    several_calls: Literal[True] = ABSENT
    """One turn may call several tools; absent otherwise."""
    turns: list[TurnRecord]
    """Turns in their order."""


class TrajectoryLine(Attempt):
    """A line of `trajectories.jsonl`: one attempt, on disk before it counts."""

    phase: Literal["train", "eval"] = ABSENT
    """Whether the attempt was played for training or for an evaluation; absent in a run of `finqa sample`."""
    truth: str = ABSENT
    """The right answer; absent if the environment does not provide it."""
    values: ReadNumbers | None = ABSENT
    """Numbers in answer and truth; absent without `truth`."""
    right_tables: list[str] = ABSENT
    """Tables that have the right answer; absent if the environment does not know them."""


class PredictionLine(TrajectoryLine):
    """A line of `samples/predictions.jsonl` of an evaluation: an attempt chosen for reading."""

    failure_reason: str
    """Reason why it is not right; empty when it is right."""
    answer: str
    """The submitted or stated answer."""


class HeldOutLine(Attempt):
    """A line of `valid_samples/step_N.jsonl`: an answer to a held-out question during `finqa sft` or `dpo`."""

    step: int
    """Number of optimizer steps of the policy."""


class PromptRecord(Written):
    """The opening of all attempts at a question."""

    messages: list[MessageRecord]
    """Opening prompt."""
    tools: list[ToolRecord]
    """Offered tools."""
    several_calls: Literal[True] = ABSENT
    """One turn may call several tools; absent otherwise."""


class CandidateRecord(Written):
    """One candidate."""

    id: str
    """Id of the attempt."""
    member: int
    """Number of the candidate, from 0."""
    seed: int
    """Seed of all its random choices."""
    turns: list[TurnRecord]
    """Turns with token ids and log-probabilities."""
    text: str
    """Texts of all turns, one below the other."""


class CandidatesLine(Written):
    """A line of `candidates.jsonl`: a question with all its candidates, written once all of them are played."""

    schema_version: Literal[1]
    """Version of the layout of this line."""
    id: str
    """Id of the question."""
    task: TaskRecord
    """The question."""
    prompt: PromptRecord
    """The opening of all candidates."""
    candidates: list[CandidateRecord]
    """Graded candidates; faults are left out."""


class ScoreRecord(Written):
    """The verdict on one candidate."""

    id: str
    """Id of the attempt."""
    status: Status
    """Why it ended."""
    reward: float | None
    """Total reward."""
    components: Components
    """Named parts of the reward."""
    explanation: str
    """The grader's reason."""
    error: str
    """One line about a limit; empty on completion."""
    seconds: float
    """Wall-clock seconds."""
    correct: bool | None
    """The verdict."""
    well_formed: bool | None
    """It has the requested format; null if no format is requested."""
    answer: str
    """The submitted or stated answer."""


class ScoresLine(Written):
    """A line of `scores.jsonl` of a sampling run: the verdicts on the candidates of one question."""

    schema_version: Literal[1]
    """Version of the layout of this line."""
    id: str
    """Id of the question."""
    scores: list[ScoreRecord]
    """Verdicts in the order of the candidates."""


class SideRecord(Written):
    """One of the two attempts of a pair."""

    attempt: str
    """Id of the attempt in its run."""
    run: str
    """Folder of the run."""
    text: str
    """Texts of all turns, one below the other."""
    reward: float
    """Total reward."""
    components: Components
    """Named parts of the reward."""
    correct: bool
    """The verdict."""
    well_formed: bool | None
    """It has the requested format; null if no format is requested."""
    turns: list[TurnRecord]
    """Turns, with token ids if they were recorded."""


class PairLine(Written):
    """A line of `pairs.jsonl`: a preference pair."""

    schema_version: Literal[1]
    """Version of the layout of this line."""
    id: str
    """Unique in the file: id of the question, `#` and a number."""
    task: TaskRecord
    """The question."""
    margin: float
    """Reward of the chosen attempt minus that of the rejected one."""
    prompt: PromptRecord
    """The opening of both attempts."""
    chosen: SideRecord
    """The preferred attempt."""
    rejected: SideRecord
    """The other attempt."""
    held_out: bool
    """The pair is for evaluation, not for training."""


class ScoredVerdict(Written):
    """The verdict of a reward on one answer."""

    reward: float
    """Total reward."""
    components: Components
    """Named parts of the reward."""
    explanation: str
    """The reason; empty if the reward gives none."""


class ScoredAnswer(ScoredVerdict):
    """A line of `scores.jsonl` of `finqa rewards score`: one answer."""

    id: str
    """Id of the row, or its number."""
    parse_ok: bool = ABSENT
    """The answer has the requested JSON form; absent if the reward requests none."""


class ScoredGroup(Written):
    """A line of `scores.jsonl` of `finqa rewards score`: the candidates of one question."""

    id: str
    """Id of the row, or its number."""
    parse_rate: float = ABSENT
    """Share of candidates in the requested JSON form; absent if the reward requests none."""
    mean_reward: float
    """Mean reward."""
    max_reward: float
    """Largest reward."""
    min_reward: float
    """Smallest reward."""
    candidates: list[ScoredVerdict]
    """Verdicts in the order of the candidates."""
