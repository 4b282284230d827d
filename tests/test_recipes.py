"""`cpfix container`: which recipe is printed for which image."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from migrator import containers, recipes
from migrator.cli import main
from migrator.model import EnvironmentRefuses, Install, UsageError


def container(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, ["container", *arguments])


def install(project: str, version: str, imports: bool = True) -> Install:
    """A copy in site-packages."""
    return Install(project, project, version, Path("/"), "wheel", imports, True)


class TestRecipe:
    @pytest.mark.parametrize("name", recipes.RECIPES)
    def test_is_the_file_for_the_tag_that_it_was_written_for(self, name: str) -> None:
        file = recipes.FOLDER / recipes.RECIPES[name]
        assert recipes.recipe(name, recipes.WRITTEN_FOR) == file.read_text()

    @pytest.mark.parametrize("tag", [c.tag for c in containers.load()] + ["25.09.01", "25.11.nemotron_h-2"])
    @pytest.mark.parametrize("name", recipes.RECIPES)
    def test_names_no_other_tag(self, name: str, tag: str) -> None:
        text = recipes.recipe(name, tag)
        if tag != recipes.WRITTEN_FOR:
            assert recipes.WRITTEN_FOR not in text.replace(tag, "")
        assert (tag in text) is (recipes.WRITTEN_FOR in (recipes.FOLDER / recipes.RECIPES[name]).read_text())

    def test_leaves_out_projects_that_the_image_has_not(self) -> None:
        rows = {tag: recipes.recipe("kubernetes", tag) for tag in ("25.04", "25.09", "26.04")}
        assert ["Megatron-Bridge" in text for text in rows.values()] == [False, True, True]
        assert ["NeMo" in text for text in rows.values()] == [True, True, False]
        assert all("megatron-lm" in text for text in rows.values())

    @pytest.mark.parametrize(
        "tag", ["25.10", "25.0", "25.090", "25.09x", "25.09.", "25.09.1\nRUN x", "x25.09", "../25.09"]
    )
    def test_of_an_unknown_tag_is_refused(self, tag: str) -> None:
        with pytest.raises(UsageError, match=r"there are 25\.04, 25\.07, 25\.09"):
            recipes.recipe("dockerfile", tag)

    def test_files_of_the_folder_are_all_recipes(self) -> None:
        there = {path.name for path in recipes.FOLDER.iterdir()}
        assert there == {*recipes.RECIPES.values(), "README.md"}
        readme = (recipes.FOLDER / "README.md").read_text()
        assert all(f"`{name}`" in readme for name in (*recipes.RECIPES, *recipes.RECIPES.values()))


class TestTag:
    def test_is_that_of_the_versions(self) -> None:
        assert recipes.tag_of([install("nemo", "2.6.1"), install("megatron-core", "0.15.0")]) == "25.11"

    def test_looks_at_imported_copies_only(self) -> None:
        assert recipes.tag_of([install("nemo", "2.3.0", False), install("nemo", "2.4.0")]) == "25.07"

    @pytest.mark.parametrize(
        "versions", [{}, {"nemo": "2.9.0"}, {"nemo": "2.5.0", "megatron-core": "0.15.0"}]
    )
    def test_of_others_is_asked_for(self, versions: dict[str, str]) -> None:
        with pytest.raises(EnvironmentRefuses, match=r"--tag \(25\.04, 25\.07") as refused:
            recipes.tag_of([install(*item) for item in versions.items()])
        assert ", ".join(f"{p} {v}" for p, v in versions.items()) in str(refused.value)


class TestCommand:
    def test_prints_the_dockerfile_and_nothing_else(self) -> None:
        result = container("--tag", "25.07")
        assert result.exit_code == 0
        assert result.output == recipes.recipe("dockerfile", "25.07")

    @pytest.mark.upstream
    def test_looks_at_the_stack_without_a_tag(self, sandbox: Callable[..., Path]) -> None:
        root = sandbox({"nemo": "2.6.2", "megatron-core": "0.15.3"})
        result = container("--root", str(root), "--recipe", "kubernetes")
        assert result.exit_code == 0
        assert result.output == recipes.recipe("kubernetes", "25.11")

    def test_has_a_json_form(self) -> None:
        data = json.loads(container("--tag", "26.02.01", "--recipe", "enroot", "--json").output)
        assert data == {"tag": "26.02.01", "name": "enroot", "text": recipes.recipe("enroot", "26.02.01")}

    def test_refuses_what_it_does_not_know(self, tmp_path: Path) -> None:
        assert container("--tag", "1.0").exit_code == 2
        assert container("--tag", "25.09", "--recipe", "helm").exit_code == 2
        assert container("--root", str(tmp_path)).exit_code == 4
