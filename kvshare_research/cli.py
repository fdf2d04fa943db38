"""Every command is a Hydra application over the same `conf/`: composing, checking, starting ranks, saying what failed.

    @app("config", module="kvshare_research")
    def main(cfg, comm): ...        # called with a checked, resolved config, on every rank where the driver has ranks

Errors of this project become one line on stderr and an exit code: 2 for a configuration that cannot mean
anything, 1 for the rest. `debug=true` shows tracebacks.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .core.errors import ConfigError, KvShareError

if TYPE_CHECKING:
    from .config import Run
    from .launch import World

Job = Callable[[Any, Any], int]
Salvage = Callable[["Run"], str]

_TAKING_A_VALUE = (
    *("--cfg", "-c", "--package", "-p", "--experimental-rerun"),
    *("--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd"),
)
_INFOS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
_TRACEBACKS = "HYDRA_FULL_ERROR"  # Hydra's own switch, which people know


def conf_root() -> Path:
    """The folder of configs: `conf/` of the checkout, or the copy the installed package carries."""
    package = Path(__file__).resolve().parent
    checkout = package.parent / "conf"
    return checkout if (checkout / "config.yaml").is_file() else package / "conf"


def app(config_name: str, module: str, salvage: Salvage | None = None) -> Callable[[Job], Callable[[], int]]:
    """Makes a job a command; the command returns its exit code. `module` is what `python -m` starts it by; `salvage`
    is called, and says what is left, where this process started ranks that did not end well."""

    def wrap(job: Job) -> Callable[[], int]:
        return lambda: _command(job, config_name, module, salvage)

    return wrap


class _Reported(Exception):
    """A job ended with this exit code, and the person has been told why."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def ordered(arguments: Sequence[str]) -> list[str]:
    """The same words with all flags, and the values they take, before the overrides: Hydra's parser reads overrides in
    one row only, and calls what stands after a flag unknown."""
    flags: list[str] = []
    overrides: list[str] = []
    left = list(arguments)
    while left:
        word = left.pop(0)
        if not word.startswith("-") or word == "-":
            overrides.append(word)
        elif word in _TAKING_A_VALUE and left:
            flags += [word, left.pop(0)]
        elif word in ("--info", "-i"):  # its value may be left out, and an override is none
            flags.append(f"--info={left.pop(0) if left and left[0] in _INFOS else 'all'}")
        else:
            flags.append(word)
    return [*flags, *overrides]


def _command(job: Job, config_name: str, module: str, salvage: Salvage | None) -> int:
    from . import launch

    sys.argv[1:] = ordered(sys.argv[1:])
    if {"--help", "-h"} & set(sys.argv[1:]):
        from .help import help_text

        if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")) == "0":
            with suppress(BrokenPipeError):  # piped into something that has read enough
                print(help_text(_folders(), config_name, module), flush=True)
        return 0
    if not launch.inside_mpi():
        return _compose(config_name, lambda cfg: _start(job, cfg, module, salvage))
    world = launch.World()
    if world.rank > 0:
        _follow(world, job)
    code = _compose(config_name, lambda cfg: _lead(world, job, cfg))
    world.announce(("stop", code))
    world.leave(code)


def _start(job: Job, cfg: Any, module: str, salvage: Salvage | None) -> int:
    """Outside MPI: the job runs here, or on ranks that `mpiexec` starts with the same overrides."""
    from . import launch

    run = _checked(cfg)
    driver: Any = run.parts.get("driver")
    if not getattr(driver, "needs_ranks", False):
        try:
            with launch.unwinding():
                return job(_frozen(run.resolved), None)
        except SystemExit as ended:
            if ended.code in (128 + signal.SIGINT, 128 + signal.SIGTERM):
                _say("interrupted" if ended.code == 128 + signal.SIGINT else "told to end (SIGTERM)")
            raise
    command, env = launch.rank_command(driver, run.values.ranks, module, _arguments())
    code = 1
    try:
        code = launch.run_ranks(command, env)
    finally:  # also where this process is told to end and the ranks took too long over it
        if code and salvage is not None and (left := salvage(run)):
            _say(left)
    return code


def _lead(world: World, job: Job, cfg: Any) -> int:
    """Rank 0: all ranks run the job on the config that this one composed and checked."""
    if world.size < 2:
        raise ConfigError("started with 1 rank, expected 2 or more: one router and at least one worker")
    if cfg.get("ranks") != world.size:
        if any(argument.startswith("ranks=") for argument in _arguments()):
            raise ConfigError(f"`ranks` is `{cfg.ranks}`, but mpiexec started {world.size}; leave `ranks` out")
        cfg.ranks = world.size
    run = _checked(cfg)
    if not getattr(run.parts.get("driver"), "needs_ranks", False):
        raise ConfigError("this driver runs in one process; start it without mpiexec, or choose `driver=mpi`")
    world.announce(("run", run.resolved))
    return _on_rank(world, job, run.resolved)


def _follow(world: World, job: Job) -> NoReturn:
    """A rank above 0: silent until told what to do, gone when told to stop."""
    try:
        while True:
            word, value = world.next()
            if word == "stop":
                world.leave(value)
            _on_rank(world, job, value)
    except KeyboardInterrupt:
        world.abort(130)


def _on_rank(world: World, job: Job, resolved: Any) -> int:
    """The job's exit code; if this rank fails, it says so and takes the others with it, so that none waits forever."""
    if resolved.get("debug"):
        os.environ["KVSHARE_DEBUG"] = "1"
    try:
        return job(_frozen(resolved), world.comm)
    except KeyboardInterrupt:
        world.abort(130)
    except Exception as error:  # noqa: BLE001  (the last place that can tell the person)
        world.abort(_report(error, f" (rank {world.rank})"))


def _compose(config_name: str, task: Callable[[Any], int]) -> int:
    """Hydra's run or multirun of `task`; every failure is one line on stderr and an exit code."""
    import hydra

    asked = os.environ.get(_TRACEBACKS)
    here = os.getpid()
    codes = [0]

    def guarded(cfg: Any) -> None:
        with _environment(_TRACEBACKS, asked):
            try:
                code = task(cfg)
            except Exception as error:  # noqa: BLE001  (told here, so that a sweep goes on with its next job)
                code = _report(error)
        if os.getpid() != here and code:  # a launcher moved the job to another process: only an exception gets back
            raise _Reported(code)
        codes.append(code)

    try:
        with _environment(_TRACEBACKS, "1"):  # Hydra raises to us, instead of printing and ending the process
            hydra.main(version_base="1.3", config_path=str(conf_root()), config_name=config_name)(guarded)()
        return max(codes)
    except _Reported as reported:
        return reported.code
    except SystemExit as ended:  # Hydra's answer to a flag it does not know, or to --hydra-help
        return ended.code if isinstance(ended.code, int) else 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:  # noqa: BLE001  (Hydra's many kinds, turned into our one line)
        if type(error).__module__.partition(".")[0] == "yaml":
            place = getattr(error, "problem_mark", None)
            where = "a config" if place is None else f"{place.name}, line {place.line + 1}"
            return _report(ConfigError(f"{where}: not YAML: {getattr(error, 'problem', error)}"))
        if type(error).__module__.partition(".")[0] not in ("hydra", "omegaconf"):
            return _report(error)
        from .help import explain

        overrides = [a for a in sys.argv[1:] if "=" in a and not a.startswith("-")]
        return _report(ConfigError(explain(error, _folders(), config_name, overrides)))


def _folders() -> list[Path]:
    """Where configs are looked for: the caller's own folder first."""
    given = [Path(value) for flag, value in pairwise(sys.argv) if flag in ("--config-dir", "-cd")]
    given += [Path(a.partition("=")[2]) for a in sys.argv if a.startswith("--config-dir=")]
    return [*(folder.resolve() for folder in given), conf_root()]


def _checked(cfg: Any) -> Run:
    from hydra.core.hydra_config import HydraConfig

    from .config import check, declared

    known = HydraConfig.get()
    folders = [Path(source.path) for source in known.runtime.config_sources if source.schema == "file"]
    chosen = known.runtime.choices.get("tenants")
    file = "conf/tenants" if chosen is None else f"tenants/{chosen}.yaml"
    return check(cfg, declared(folders, str(known.job.config_name)), file)


def _frozen(resolved: Any) -> Any:
    from omegaconf import OmegaConf

    cfg = OmegaConf.create(resolved)
    OmegaConf.set_readonly(cfg, True)
    return cfg


def _arguments() -> list[str]:
    """What a rank must be given to compose the same job: Hydra's own view of it, which in a sweep is one of many."""
    from hydra.core.hydra_config import HydraConfig

    known = HydraConfig.get()
    arguments = [str(override) for override in known.overrides.task]
    for source in known.runtime.config_sources:
        if source.provider == "command-line":
            arguments += ["--config-dir", source.path]
    return [*arguments, "--config-name", str(known.job.config_name)]


def _report(error: BaseException, where: str = "") -> int:
    if "debug=true" in sys.argv or os.environ.get(_TRACEBACKS) == "1":
        traceback.print_exception(error)
    message = " ".join(str(error).split())
    if isinstance(error, KvShareError):
        _say(f"error{where}: {message}")
        return 2 if isinstance(error, ConfigError) else 1
    frame = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
    place = f" at {Path(frame.filename).name}:{frame.lineno}" if frame else ""
    name = type(error).__name__
    _say(f"internal error{where}: {name}: {message}{place}; `debug=true` shows more")
    return 1


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")  # in one piece: lines of several ranks must not mix
    sys.stderr.flush()


@contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    before = os.environ.get(name)
    _set(name, value)
    try:
        yield
    finally:
        _set(name, before)


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
