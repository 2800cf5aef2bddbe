"""The table of tasks: complete, true, and plain JSON."""

import json

from jaxrl.data import tasks
from jaxrl.launch.listing import tasks_table


def test_rows_are_complete_and_true():
    rows = tasks_table.rows()
    assert json.loads(json.dumps(rows)) == rows
    assert [row["name"] for row in rows] == sorted(tasks.BUNDLED)
    for row in rows:
        assert row["description"].endswith((".", "`", "?")), row
        for name, parameter in row["parameters"].items():
            assert parameter["help"], (row["name"], name)
        if row["name"] not in tasks.NEED_PARAMETERS:
            defaults = {n: p["default"] for n, p in row["parameters"].items()}
            assert list(tasks.get(row["name"], **defaults).splits) == row["splits"]
    by_name = {row["name"]: row for row in rows}
    assert by_name["arithmetic"]["parameters"]["digits"]["default"] == 2
    assert "default" not in by_name["gsm8k"]["parameters"]["path"]
    assert "chain_sum" in by_name["reasoning_gym"]["generators"]
    assert by_name["maze"]["splits"] == ["train", "test", "ood"]
    assert {row["name"] for row in rows if row["turns"]} == {
        "agent_program", "apps", "board_game", "calculator", "database", "diagnosis",
        "emotional_support", "game24", "geography", "html_form", "keydoor", "ledger", "planning",
        "recall", "repository", "retrieval", "revision", "routing", "text_arena", "text_grid",
        "text_world", "twenty_questions", "with_attempts", "with_compression", "with_tools",
        "workshop",
    }  # fmt: skip
