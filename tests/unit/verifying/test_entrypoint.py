"""The container's entrypoint, run as a program."""

from __future__ import annotations

import json
import os
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.entrypoint import ENTRYPOINT, MODEL, PROGRAM, argv, program, run

DEFAULTS = {
    "--host": "0.0.0.0",  # noqa: S104
    "--port": "8888",
    "--gpu-memory-utilization": "0.75",
    "--max-model-len": "auto",
    "--max-num-seqs": "128",
    "--tensor-parallel-size": "1",
}
#: Anything that can be an argument or stand in the environment.
WORDS = st.lists(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
    max_size=6,
)


def options(words: list[str]) -> dict[str, str]:
    return dict(zip(words[3::2], words[4::2], strict=True))


@pytest.mark.programs
def test_serve_is_the_default_mode_with_the_documented_defaults() -> None:
    words = argv(env=MODEL)
    assert words[:3] == ["vllm", "serve", "org/a-model"]
    assert options(words) == DEFAULTS
    assert argv(["serve"], MODEL) == words
    assert json.loads(run(env={**MODEL, "IMAGEFACTORY_DRY_RUN": "1"}).stdout) == words


@pytest.mark.parametrize(
    ("source", "passed"),
    [
        ('add_argument("--shutdown-timeout")', ["30"]),
        ('add_argument("--shutdown")', []),
        (None, []),
    ],
)
def test_requests_are_finished_if_this_vllm_can_do_that(
    source: str | None, passed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "vllm"
    (package / "engine").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    if source:
        (package / "engine" / "arg_utils.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    given = options(argv(env=MODEL))
    assert [given[name] for name in given.keys() - DEFAULTS.keys()] == passed
    assert options(argv(env={**MODEL, "SHUTDOWN_TIMEOUT": "600"}))["--shutdown-timeout"] == "600"


@pytest.mark.parametrize(
    ("variable", "option"),
    [
        ("HOST", "--host"),
        ("PORT", "--port"),
        ("GPU_MEMORY_UTIL", "--gpu-memory-utilization"),
        ("MAX_MODEL_LEN", "--max-model-len"),
        ("MAX_NUM_SEQS", "--max-num-seqs"),
        ("TENSOR_PARALLEL_SIZE", "--tensor-parallel-size"),
    ],
)
def test_each_variable_replaces_its_default(variable: str, option: str) -> None:
    words = argv(env={**MODEL, variable: "-1"})
    assert options(words) == {**DEFAULTS, option: "-1"}


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert options(argv(env={**MODEL, "PORT": ""}))["--port"] == "8888"


def test_the_model_can_be_an_argument_and_then_wins_over_the_variable() -> None:
    assert argv(["serve", "org/other"], MODEL)[2] == "org/other"
    assert argv(["serve", "org/other"])[2] == "org/other"


def test_a_first_word_that_is_a_model_is_served(tmp_path: Path) -> None:
    assert argv(["Qwen/Qwen3-0.6B", "--port", "8000"])[:3] == ["vllm", "serve", "Qwen/Qwen3-0.6B"]
    assert argv([str(tmp_path)])[:3] == ["vllm", "serve", str(tmp_path)]


@pytest.mark.parametrize("word", ["nvidia-smi", "/usr/bin/env", "./a/b/c", "a/b/c"])
def test_any_other_first_word_is_a_command(word: str) -> None:
    assert argv([word, "x"]) == [word, "x"]


@pytest.mark.programs
def test_without_a_model_the_error_says_what_to_set() -> None:
    done = run(["serve"])
    assert done.returncode == 2
    assert "MODEL" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.programs
def test_a_model_that_is_an_option_is_refused() -> None:
    assert run(env={"MODEL": "--trust-remote-code"}).returncode == 2


def test_json_in_quotes_arrives_intact() -> None:
    value = '{"method":"mtp","num_speculative_tokens":2}'
    words = argv(
        env={
            **MODEL,
            "VLLM_EXTRA_ARGS": f"--speculative-config '{value}' --no-enable-chunked-prefill",
        }
    )
    assert words[-3:] == ["--speculative-config", value, "--no-enable-chunked-prefill"]


def test_nothing_in_the_extra_arguments_is_expanded() -> None:
    words = argv(env={**MODEL, "VLLM_EXTRA_ARGS": "--x $HOME `id` $(id) * '~' ; rm"})
    assert words[-7:] == ["$HOME", "`id`", "$(id)", "*", "~", ";", "rm"]


@pytest.mark.programs
@pytest.mark.parametrize("extra", ["--x 'open", '--x "open', "--x \\"])
def test_an_unbalanced_quote_is_one_clear_error(extra: str) -> None:
    done = run(env={**MODEL, "VLLM_EXTRA_ARGS": extra})
    assert done.returncode == 2
    assert "VLLM_EXTRA_ARGS" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "given_as",
    ["--max-num-seqs 3", "--max-num-seqs=3", "--max_num_seqs 3", "--max_num_seqs=3"],
)
@pytest.mark.parametrize("where", ["extra", "arguments"])
def test_an_option_of_the_user_replaces_the_default_in_every_spelling(
    given_as: str, where: str
) -> None:
    words = (
        argv(env={**MODEL, "VLLM_EXTRA_ARGS": given_as})
        if where == "extra"
        else argv(given_as.split(), MODEL)
    )
    assert "128" not in words
    assert words[-len(given_as.split()) :] == given_as.split()


def test_short_names_replace_defaults_too() -> None:
    words = argv(env={**MODEL, "VLLM_EXTRA_ARGS": "-tp 2"})
    assert "--tensor-parallel-size" not in words
    assert words[-2:] == ["-tp", "2"]


def test_arguments_win_over_extra_arguments_over_variables_over_the_flavor_over_defaults() -> None:
    env = {
        **MODEL,
        "IMAGEFACTORY_SERVE_ARGS": json.dumps(
            ["--max-num-seqs", "4", "--max-model-len", "4", "--port=4"]
        ),
    }
    assert argv(env=env)[-5:] == ["--max-num-seqs", "4", "--max-model-len", "4", "--port=4"]
    env |= {
        "MAX_NUM_SEQS": "3",
        "MAX_MODEL_LEN": "3",
        "VLLM_EXTRA_ARGS": "--max-model-len 2 --seed 2",
    }
    words = argv(["--seed", "1"], env)
    assert words[-7:] == ["--port=4", "--max-num-seqs", "3", "--max-model-len", "2", "--seed", "1"]


def test_an_option_with_several_values_is_replaced_with_all_of_them() -> None:
    env = {
        **MODEL,
        "IMAGEFACTORY_SERVE_ARGS": json.dumps(["--allowed", "a", "b", "-1", "--seed", "1"]),
    }
    words = argv(["--allowed", "c"], env)
    assert words[-4:] == ["--seed", "1", "--allowed", "c"]
    assert "a" not in words


def test_a_repeated_option_of_the_user_stays_repeated() -> None:
    assert argv(["--lora", "a", "--lora", "b"], MODEL)[-4:] == ["--lora", "a", "--lora", "b"]


def test_switching_off_wins_over_a_flavor_that_switches_on() -> None:
    env = {**MODEL, "IMAGEFACTORY_SERVE_ARGS": json.dumps(["--enable-prefix-caching"])}
    words = argv(["--no-enable-prefix-caching"], env)
    assert "--enable-prefix-caching" not in words


@pytest.mark.programs
@pytest.mark.parametrize("broken", ["{", '"--x"', "[1]"])
def test_flavor_arguments_that_are_no_list_of_words_are_an_error(broken: str) -> None:
    done = run(env={**MODEL, "IMAGEFACTORY_SERVE_ARGS": broken})
    assert done.returncode == 2
    assert "IMAGEFACTORY_SERVE_ARGS" in done.stderr


def test_a_cpu_image_gets_no_gpu_default_but_what_the_user_sets() -> None:
    env = {**MODEL, "IMAGEFACTORY_CHANNEL": "cpu"}
    assert "--gpu-memory-utilization" not in argv(env=env)
    assert options(argv(env={**env, "GPU_MEMORY_UTIL": "0.5"}))["--gpu-memory-utilization"] == "0.5"


@given(extra=WORDS, arguments=WORDS)
def test_quoted_words_arrive_unchanged(extra: list[str], arguments: list[str]) -> None:
    env = {**MODEL, "VLLM_EXTRA_ARGS": shlex.join(["--first-option", *extra])}
    words = PROGRAM.command(["serve", "--second-option", *arguments], env)
    own = [word for word in arguments if word.startswith("-")]
    assert words[len(words) - len(arguments) :] == arguments
    if not own:
        assert words[-len(arguments) - len(extra) - 2 :] == [
            "--first-option",
            *extra,
            "--second-option",
            *arguments,
        ]


@pytest.mark.programs
def test_any_other_command_runs_with_its_arguments_as_they_are() -> None:
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    for first in ("", "--help", "serve"):
        words = [
            first,
            "-x",
            "--",
            "two words",
            "'q'",
            '"',
            "\\",
            "$HOME",
            "*",
            "a\nb",
            "\té\U0001f600",
        ]
        done = run([sys.executable, "-S", "-c", code, *words])
        assert json.loads(done.stdout) == words


@pytest.mark.programs
def test_a_command_that_is_not_there_is_said_to_be_missing() -> None:
    done = run(["no-such-command"])
    assert done.returncode == 127
    assert "no-such-command" in done.stderr


@pytest.mark.programs
def test_bash_runs_a_shell_with_its_arguments() -> None:
    done = run(["bash", "-c", 'echo "$0|$1"; exit 7', "two words", "'q'"])
    assert (done.returncode, done.stdout) == (7, "two words|'q'\n")


@pytest.mark.programs
def test_vllm_takes_the_place_of_the_entrypoint_so_that_signals_reach_it(tmp_path: Path) -> None:
    program(
        tmp_path,
        "vllm",
        "import os, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(42))\n"
        "print(os.getpid(), *sys.argv[1:3], flush=True)\n"
        "signal.pause()",
    )
    with subprocess.Popen(
        [sys.executable, "-B", str(ENTRYPOINT)],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", **MODEL},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split() == [str(process.pid), "serve", "org/a-model"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 42


def test_the_ray_head_stays_in_the_foreground_on_its_port(tmp_path: Path) -> None:
    program(tmp_path, "ray", "")
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "RAY_NODE_IP": "10.0.0.1",
        "RAY_EXTRA_ARGS": "--num-gpus 1",
    }
    words = argv(["ray-head", "--verbose"], env)
    assert words[:5] == ["ray", "start", "--block", "--head", "--port=6379"]
    assert words[-4:] == ["--node-ip-address=10.0.0.1", "--num-gpus", "1", "--verbose"]
    assert "--port=7000" in argv(["ray-head"], {**env, "RAY_PORT": "7000"})


def test_a_ray_worker_joins_the_head_at_the_address(tmp_path: Path) -> None:
    program(tmp_path, "ray", "")
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert "--address=10.0.0.1:6379" in argv(
        ["ray-worker"], {**env, "RAY_HEAD_ADDRESS": "10.0.0.1"}
    )
    assert "--address=10.0.0.1:7000" in argv(
        ["ray-worker"], {**env, "RAY_HEAD_ADDRESS": "10.0.0.1:7000"}
    )


@pytest.mark.programs
def test_a_ray_worker_without_a_head_says_what_to_set(tmp_path: Path) -> None:
    program(tmp_path, "ray", "")
    done = run(["ray-worker"], {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.returncode == 2
    assert "RAY_HEAD_ADDRESS" in done.stderr


@pytest.mark.programs
def test_ray_modes_without_ray_say_so_and_exit_3(tmp_path: Path) -> None:
    for mode in ("ray-head", "ray-worker"):
        done = run([mode], {"PATH": str(tmp_path), "RAY_HEAD_ADDRESS": "10.0.0.1"})
        assert done.returncode == 3
        assert "Ray" in done.stderr


@pytest.mark.programs
def test_help_names_the_modes_and_the_variables() -> None:
    done = run(["--help"])
    assert done.returncode == 0
    for word in (
        "serve",
        "ray-head",
        "ray-worker",
        "bash",
        "MODEL",
        "VLLM_EXTRA_ARGS",
        "GPU_MEMORY_UTIL",
    ):
        assert word in done.stdout


def test_the_help_of_vllm_serve_can_be_reached_without_a_model() -> None:
    assert argv(["serve", "--help"])[:2] == ["vllm", "serve"]


def test_the_entrypoint_is_executable_and_runs_the_image_s_python() -> None:
    assert ENTRYPOINT.stat().st_mode & stat.S_IXUSR
    assert ENTRYPOINT.read_text().startswith("#!/opt/venv/bin/python\n")


@pytest.mark.programs
def test_the_entrypoint_finds_the_file_beside_it_where_python_does_not_look_there() -> None:
    done = run(env={"PYTHONSAFEPATH": "1", "IMAGEFACTORY_DRY_RUN": "1", **MODEL})
    assert (done.returncode, done.stderr) == (0, "")
