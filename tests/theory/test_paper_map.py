"""docs/paper-map.md lists every numbered statement of the paper in the paper's order, each with a status."""

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "paper-map.md"
STATUSES = {"run and judged", "judged in part", "not implemented"}

# Kind and label of every theorem, lemma, claim, corollary, proposition, definition, fact, remark and listing of the
# paper's LaTeX source, in its order; some have no label.
STATEMENTS = [
    ("definition", "def:2nn"),
    ("definition", "def:init"),
    ("fact", ""),
    ("definition", "def:err"),
    ("definition", "def:HSR"),
    ("algorithm", "alg:half_space_report"),
    ("corollary", "cor:aem92"),
    ("definition", ""),
    ("lemma", "lem:sparse_initial"),
    ("remark", "remark:sparse"),
    ("algorithm", "alg:ds_for_w_training"),
    ("lemma", ""),
    ("algorithm", "alg:ds_for_x_training"),
    ("lemma", ""),
    ("proposition", "prop:sep"),
    ("lemma", "lem:quartic"),
    ("theorem", "thm:main_informal_1"),
    ("theorem", "thm:main_informal_2"),
    ("algorithm", "alg:ds_full"),
    ("algorithm", "alg:weight_full"),
    ("algorithm", "alg:data_full"),
    ("lemma", "lem:bernstein"),
    ("claim", "clm:gaussain_anti_shift"),
    ("lemma", "lem:anti_gaussian"),
    ("theorem", "thm:matrix_chernoff"),
    ("theorem", "thm:aem92"),
    ("corollary", ""),
    ("claim", "clm:eigen_min"),
    ("lemma", "lem:3.1"),
    ("lemma", "lem:3.2"),
    ("definition", ""),
    ("definition", ""),
    ("lemma", "lem:3.4"),
    ("claim", "cla:gradient_bound"),
    ("claim", "clm:4.1"),
    ("definition", ""),
    ("definition", ""),
    ("lemma", "lem:bound_fire_neurons"),
    ("claim", "clm:S_condition"),
    ("claim", "cla:yu0"),
    ("claim", "cla:split_into_four_terms"),
    ("lemma", "cla:inductive_claim"),
    ("fact", "fact:bound_H_k_bot"),
    ("claim", "cla:C1"),
    ("claim", "cla:C2"),
    ("claim", "cla:C3"),
    ("claim", "cla:C4"),
    ("lemma", "clm:choose_eta_R"),
    ("corollary", ""),
    ("theorem", "thm:main_1"),
    ("theorem", "thm:sep"),
    ("claim", "clm:g1_z_b"),
    ("corollary", "cor:main_quantum"),
    ("remark", ""),
    ("remark", ""),
    ("algorithm", "alg:qc_alg_1"),
    ("algorithm", "alg:qc_alg_2"),
    ("theorem", "thm:grover_algo"),
    ("lemma", "lem:running_time_q1"),
    ("lemma", "lem:running_time_q2"),
]


def mapped() -> list[list[str]]:
    """Return the cells of the first table, row by row."""
    text = PAGE.read_text(encoding="utf-8").split("## Every numbered statement")[1].split("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_every_statement_of_the_paper_is_mapped_in_its_order():
    assert [tuple((row[0] + " ").split(" ")[:2]) for row in mapped()] == STATEMENTS
    assert len(STATEMENTS) == 60


def test_every_statement_has_a_status_a_function_and_a_test():
    for statement, text, function, test, status in mapped():
        assert status in STATUSES, statement
        assert text, statement
        assert test, statement
        assert function or status == "not implemented" or "test_" in test, statement
