"""Records from files, mixtures with schedules, contamination, templates."""

import csv
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from jaxrl.data import tasks
from jaxrl.data.sources import contamination, records
from jaxrl.data.text import templates
from jaxrl.data.types import Problem

RECORDS = [{"question": f"Größe {i}?", "answer": i} for i in range(7)]


@pytest.mark.exact("JSONL, Parquet and saved datasets give the same records")
def test_jsonl_parquet_and_saved_datasets_give_the_same_records(tmp_path):
    import pyarrow
    import pyarrow.parquet

    lines = "\n".join(json.dumps(r, ensure_ascii=False) for r in RECORDS)
    (tmp_path / "a.jsonl").write_text(
        lines.replace("\n", "\n\n", 1)
    )  # a blank line, no last newline
    table = pyarrow.Table.from_pylist(RECORDS)
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "many").mkdir()
    pyarrow.parquet.write_table(table.slice(0, 3), tmp_path / "many" / "0.parquet")
    pyarrow.parquet.write_table(table.slice(3), tmp_path / "many" / "1.parquet")
    for name in ("a.jsonl", "a.parquet", "many"):
        read = records.read(str(tmp_path / name))
        assert len(read) == 7 and [dict(read[i]) for i in range(7)] == RECORDS, name
        assert dict(read[-1]) == RECORDS[-1]
        with pytest.raises(IndexError):
            read[7]


def test_every_line_of_a_large_file_is_checked_in_bounded_memory(tmp_path):
    """A broken line in the middle of 70 MB is found when the file is opened."""
    path = tmp_path / "large.jsonl"
    line = json.dumps({"x": "y" * 100_000}).encode() + b"\n"
    with path.open("wb") as file:
        for number in range(700):
            file.write(line.replace(b'"x":', b'"x" ') if number == 350 else line)
    tracemalloc.start()
    with pytest.raises(ValueError, match="record 350: not JSON"):
        records.read(str(path))
    with records.already_checked():  # as in a scoring worker, after the trainer
        assert len(records.read(str(path))) == 700
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LONGEST_LINE", 100)
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": 1}\n{"x": "' + "y" * 200)
    with pytest.raises(ValueError, match=r"record 1: the line has more than 100 bytes"):
        records.read(str(path))
    path.write_text("[" * 90 + "\n")
    with pytest.raises(ValueError, match="record 0: not JSON"):
        records.read(str(path))


@pytest.mark.extra
def test_a_dataset_saved_by_the_datasets_library(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(RECORDS).save_to_disk(str(tmp_path / "saved"), num_shards=2)
    read = records.read(str(tmp_path / "saved"))
    assert [read[i] for i in range(len(read))] == RECORDS


def test_bad_sources_are_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": \n')
    (tmp_path / "b.jsonl").write_text('{"x": 1}\n{"x": 2}\n[1]\n')
    (tmp_path / "c.jsonl").write_text('{"x": 1}\n{"x" 2}\n')
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "b.csv").write_text("x,y\n1,2\n\n3\n")
    (tmp_path / "empty.jsonl").write_text("")
    for name in "ac":  # before the run begins, and not when the record's turn comes
        with pytest.raises(ValueError, match="record 1: not JSON"):
            records.read(str(tmp_path / f"{name}.jsonl"))
    with pytest.raises(ValueError, match=r"record 2: .* is not a JSON object"):
        records.read(str(tmp_path / "b.jsonl"))
    assert len(records.read(str(tmp_path / "empty.jsonl"))) == 0
    for spec, message in [
        ("/no.jsonl", "does not exist"),
        (str(tmp_path / "a.txt"), "none of"),
        (str(tmp_path / "b.csv"), "line 4: 1 values for 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            records.read(spec)
    with pytest.raises(ValueError, match="name its split"):
        records.read("tfds:mnist")


def test_long_cells_of_csv_are_read_and_other_faults_name_the_file(tmp_path):
    path, before = tmp_path / "a.csv", csv.field_size_limit()
    path.write_text(f"x,y\n1,{'z' * 200_000}\n")
    assert len(records.read(str(path))[0]["y"]) == 200_000
    for content, says in (
        (b"x,y\n1,2\n3,\xe9\n", r"a.csv, after line \d: not UTF-8 .*save it as UTF-8"),
        (b"x,y\n1,2\n3\n", r"a.csv, line 3: 1 values for 2"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=says):
            records.read(str(path))
    assert csv.field_size_limit() == before


def test_a_cell_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LONGEST_LINE", 100)
    (tmp_path / "a.csv").write_text(f"x\n{'z' * 101}\n")
    with pytest.raises(ValueError, match=r"a.csv, line 2: .*field larger than field limit"):
        records.read(str(tmp_path / "a.csv"))


def test_tfds_builder_writes_what_the_source_reads_without_tensorflow(tmp_path):
    program = (
        "import sys; from jaxrl.data.sources import records as sources\n"
        "from jaxrl.data import tasks\n"
        "from jaxrl.data.builders.jaxrl_tasks import jaxrl_tasks_dataset_builder as b\n"
        "config = b.TaskConfig(name='m', task='maze', params='{\"size\": 3}', examples=9)\n"
        f"b.prepare(config, {str(tmp_path)!r})\n"
        f"read = sources.read('tfds:jaxrl_tasks/m:1.0.0/train@{tmp_path}')\n"
        "task = tasks.get('maze', size=3)\n"
        "made = {task.problem('train', 0, i).id: task.problem('train', 0, i) for i in range(9)}\n"
        "got = {read[i]['id'].decode(): read[i] for i in range(len(read))}\n"
        "assert set(got) == set(made) and len(got) > 3\n"
        "for id, record in got.items():\n"
        "    assert sources.field(record, 'prompt', '') == made[id].prompt\n"
        "    assert task.reward(made[id], record['gold'].decode()).value == 1.0\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def test_tfds_episodes_are_records(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")

    class Episodes(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            step = {
                "reward": tfds.features.Scalar(np.float32),
                "is_last": tfds.features.Scalar(np.bool_),
            }
            return self.dataset_info_from_configs(
                features=tfds.features.FeaturesDict({"steps": tfds.features.Dataset(step)})
            )

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for i in range(3):
                yield i, {"steps": [{"reward": float(t), "is_last": t == i} for t in range(i + 1)]}

    Episodes(data_dir=str(tmp_path), file_format="array_record").download_and_prepare()
    read = records.read(f"tfds:episodes:1.0.0/train@{tmp_path}")
    assert sorted(len(list(episode["steps"])) for episode in read) == [1, 2, 3]


# Mixtures


def test_a_mixture_as_one_task():
    spec = json.dumps({"a": [1, "sat", {}], "b": [3, "countdown", {}, {"most": 5}]})
    task = tasks.get("mixture", parts=spec)
    problems = [task.problem("train", 0, i) for i in range(100)]
    assert all(task.reward(p, task.gold(p)).value == 1.0 for p in problems)
    assert abs(sum(p.domain == "b" for p in problems) - 75) < 15 and task.alphabet
    assert task.problem("train", 0, 7) == problems[7]
    assert {p.metadata.get("most") for p in problems if p.domain == "b"} == {5}
    assert [task.problem("test", 0, i).domain for i in range(4)] == ["a", "b", "a", "b"]
    assert len({task.problem("test", 0, i).id for i in range(20)}) > 15


def test_a_mixture_is_scored_by_each_problems_own_task():
    spec = json.dumps({"a": [1, "arithmetic", {}], "b": [1, "tests.data.hostile:finite", {}]})
    task = tasks.get("mixture", parts=spec)
    assert task.splits == ("train",) and set(task.parts) == {"a", "b"}
    sums, numbers = (task.parts[name].problem("train", 0, 3) for name in "ab")
    assert task.reward(sums, "no sum").value == 0.0 and task.reward(numbers, "no sum").value == 1.0
    assert task.reward(sums, str(sums.answer)).value == 1.0


def test_bad_mixtures_are_named():
    for weights in [(-1.0, 2.0), (0.0, 0.0)]:
        parts = {str(i): [w, "arithmetic", {}] for i, w in enumerate(weights)}
        with pytest.raises(ValueError, match="need >= 0, sum > 0"):
            tasks.get("mixture", parts=json.dumps(parts))


# Contamination


def test_contamination_by_hand():
    held_out = ["what is the sum of three and four", "short one"]
    index = contamination.index(held_out, n=4)
    report = contamination.decontaminate(
        [
            "Tell me: WHAT is the sum, of five?",  # shares what-is-the-sum, is-the-sum-of
            "the sum of three apples",  # shares the-sum-of-three
            "is the total of three and five",
            "Short one!",
            "",
        ],
        index,
        n=4,
    )
    assert report.kept == [2, 4] and report.dropped == [0, 1, 3]
    assert report.overlap == pytest.approx([2 / 5, 1 / 2, 0, 1, 0])
    lenient = contamination.decontaminate(["what is the sum of five"], index, n=4, most=0.7)
    assert lenient.kept == [0] and lenient.overlap == pytest.approx([2 / 3])


def test_duplicates_keep_the_first():
    texts = ["a b c d e f", "x y z", "A, b c d e f!", "a b c d e g", "x y z w"]
    report = contamination.deduplicate(texts, n=2, most=0.99)
    assert report.kept == [0, 1, 3, 4] and report.dropped == [2]
    assert contamination.deduplicate(texts, n=2, most=0.6).kept == [0, 1]


def test_no_bundled_split_is_contaminated_word_for_word():
    task = tasks.get("sql")
    made = {s: [task.problem(s, 0, i) for i in range(30)] for s in ("train", "test")}
    questions = {s: [p.prompt.splitlines()[2] for p in made[s]] for s in made}
    exact = contamination.decontaminate(
        questions["train"], contamination.index(questions["test"], 50), n=50
    )
    assert not exact.dropped


# Templates

QUESTION = Problem("q", "2+2?", 4)


def test_templates_and_systems():
    asked = templates.apply(QUESTION, "qa", system="Be brief.")
    assert asked.prompt == "Be brief.\n\nQuestion: 2+2?\nAnswer:"
    assert [t["role"] for t in asked.messages] == ["system", "user"]
    assert asked.messages[1]["content"] == "Question: 2+2?\nAnswer:" and asked.answer == 4
    again = templates.apply(asked, "{question}", system="Other.")
    assert again.messages[0]["content"] == "Be brief."
    assert (
        templates.apply(Problem("q", "{question}{x}", 0), "<{question}>").prompt
        == "<{question}{x}>"
    )
    with pytest.raises(ValueError, match="template='hello'"):
        templates.apply(QUESTION, "hello")


def test_few_shot_never_shows_the_problem_itself():
    task = tasks.get("countdown")
    change = templates.shots(task, 2)
    wrapped = templates.wrap(task, change)
    for index in range(4):
        problem, plain = wrapped.problem("train", 0, index), task.problem("train", 0, index)
        assert [t["role"] for t in problem.messages] == ["user", "assistant"] * 2 + ["user"]
        assert problem.prompt.count(plain.prompt) == 1 and problem.prompt.endswith(plain.prompt)
        assert wrapped.reward(problem, wrapped.gold(problem)).value == 1.0
    with pytest.raises(ValueError, match="its own examples"):
        templates.few_shot(QUESTION, [(QUESTION, "4")])


def test_a_file_that_is_written_to_is_noticed_and_one_that_is_replaced_is_not(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n{"a": 2}\n')
    rows = records.Jsonl(path)
    assert [rows[i]["a"] for i in (0, 1, -1)] == [1, 2, 2]
    (tmp_path / "new").write_text('{"a": 3}\n')
    (tmp_path / "new").replace(path)
    assert rows[1] == {"a": 2} and records.Jsonl(path)[0] == {"a": 3}
    rows = records.Jsonl(path)
    path.write_text("")  # a process that had mapped the file would be killed here
    with pytest.raises(ValueError, match="has been written to since it was opened"):
        rows[0]
