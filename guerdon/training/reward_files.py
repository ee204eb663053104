"""A run's reward on its own: saved beside the checkpoints, loaded into another run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from guerdon.config import GuerdonConfig, compose, registry_of, sources
from guerdon.reward.success_classifier import ClassifierReward
from guerdon.training.checkpoints import checkpoint_steps, load_checkpoint, save_checkpoint
from guerdon.training.fit_files import COMPARED, check_fits, is_fit, load_classifier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from guerdon.config.schema import RewardConfig
    from guerdon.reward import Reward

_KEYS = ("reward", "imports")


def save_reward(root: Path, step: int, reward: Reward, config: Path) -> None:
    """Writes a reward as it is, with the options it was made with, in the place of an older one.

    What only its run can use is left out, such as the policy's transitions. The environment's own
    reward is not written.

    Args:
        root: The folder ``reward`` of the run.
        step: How far the run is.
        reward: The reward.
        config: The run's ``config.yaml``.
    """
    if reward.is_env:
        return
    state = reward.portable_state()
    values = sources.read(config)
    options = {key: values[key] for key in _KEYS if key in values}
    save_checkpoint(root, step, {"state": state, "options": options}, keep=1)


def load_reward(reward: Reward, config: RewardConfig) -> None:
    """Makes a reward what the one of another run is.

    Args:
        reward: The reward.
        config: What it was made by; its ``checkpoint_path`` names the run, or the run's folder
            ``reward``, and its terms have to be those of that run; or a fit, for a term
            ``classifier``.
    """
    path = config.checkpoint_path
    assert path is not None
    if is_fit(path):
        _load_classifier(reward, path)
    else:
        _load_run(reward, config, path)
    for model in reward.models:
        if isinstance(model, ClassifierReward):
            asked = {name: getattr(model.config, name) for name in COMPARED}
            check_fits({**model.meta, "path": path}, asked)
            model.check_good_enough()


def _load_run(reward: Reward, config: RewardConfig, path: str) -> None:
    saved = _read(path, ("state", "options"))
    ours, theirs = (_types(terms) for terms in (config.terms, saved["options"]["reward"]["terms"]))
    if ours != theirs:
        raise ValueError(
            f"the reward in {path} is made of {theirs}, but this run's of {ours}: take that run's "
            f"reward with --from-reward, or leave out 'reward.checkpoint_path'"
        )
    try:
        reward.load_training_state(saved["state"])
    except (RuntimeError, ValueError, KeyError, AttributeError) as error:
        why = " ".join(part.strip() for part in str(error).splitlines()[:2])
        raise ValueError(
            f"the reward in {path} does not fit this run's ({why}): take that run's options with "
            f"--from-reward, and an environment with the same spaces"
        ) from error


def _load_classifier(reward: Reward, path: str) -> None:
    found = [model for model in reward.models if isinstance(model, ClassifierReward)]
    if len(found) != 1:
        raise ValueError(
            f"{path} is a fitted classifier, but this run's reward is made of "
            f"{', '.join(reward.terms)}: choose it with reward=classifier"
        )
    model = found[0]
    members, meta = load_classifier(path)
    weights = [member.state_dict() for member in members]
    model.load_training_state({"members": weights, "meta": meta})


def _types(terms: Mapping[str, Any]) -> str:
    named = {name: options["type"] for name, options in terms.items()}
    return ", ".join(name if name == kind else f"{name} ({kind})" for name, kind in named.items())


def with_reward_of(
    source: str | Path | Mapping[str, Any] | GuerdonConfig | None,
    overrides: Iterable[str],
    path: str | Path,
) -> dict[str, Any]:
    """A source of a config with the reward of a run, which stays as it is.

    Args:
        source: A preset, the path of a config file, sections as a dictionary, a config, or None.
        overrides: What is said beside it.
        path: The run, or its folder ``reward``.
    """
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        if key in ("reward", "reward.type"):
            raise ValueError(f"the reward is that of {path}: leave {override!r} out")
    options = _read(path, ("options",))["options"]
    values = _sections(source, "+".join(options["reward"]["terms"]))
    own = values.get("imports") or []
    imports = [*own, *options.get("imports", [])] if isinstance(own, list) else own
    frozen = {"checkpoint_path": str(Path(path).resolve()), "cotrain": False, "pretrain": False}
    return {
        **values,
        "reward": {**options["reward"], **frozen},
        **({"imports": list(dict.fromkeys(imports))} if imports else {}),
    }


def _sections(source: Any, reward: str) -> dict[str, Any]:
    """A source as sections; the run of a preset is named after it and the reward."""
    if source is None:
        return {}
    if isinstance(source, str) and not sources.is_file(source):
        values = compose(source).model_dump()
        parts = sources.split_preset(source, registry_of("policy").names())
        values["run"]["name"] = f"{parts['env']}_{parts['policy']}_{reward}"
        return values
    if isinstance(source, GuerdonConfig):
        return source.model_dump()
    if isinstance(source, str | Path):
        return sources.read(Path(source))
    return {**sources.plain(source)}


def _read(path: str | Path, parts: tuple[str, ...]) -> dict[str, Any]:
    folder = Path(path)
    if (folder / "reward").is_dir():
        folder = folder / "reward"
    if not checkpoint_steps(folder):
        raise FileNotFoundError(
            f"{path} holds no reward: give a run that has learned one, its folder 'reward', or the "
            "'reward.save_dir' of a fit (`guerdon reward fit`)"
        )
    return load_checkpoint(folder, parts=parts)[0]
