"""Builds the native box's program and library with the package; without a C compiler, neither."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ("-O2", "-Wall", "-Wextra", "-Wno-unused-result")


class BoxHook(BuildHookInterface):
    """Compiles `box.c` beside itself, static where the C library can be."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling."""
        if self.target_name != "wheel":
            return
        folder = Path(self.root, "src/practicum/sandbox")
        source, target = folder / "box.c", folder / "practicum-box"
        library = folder / "practicum-box.so"
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None:
            target.unlink(missing_ok=True)
            library.unlink(missing_ok=True)
            self.app.display_warning("no C compiler: boxes will be made by bubblewrap")
            return
        name = hashlib.blake2b(source.read_bytes(), digest_size=8).hexdigest()
        building = target.with_suffix(f".{os.getpid()}")
        command = [compiler, *FLAGS, f'-DSOURCE="{name}"', "-o", str(building), str(source)]
        for made, ways in ((library, [["-shared", "-fPIC"]]), (target, [["-static"], []])):
            for more in ways:
                done = subprocess.run(
                    [*command, *more], capture_output=True, text=True, check=False
                )
                if done.returncode == 0:
                    building.rename(made)
                    break
            else:
                target.unlink(missing_ok=True)
                self.app.display_warning(f"boxes will be made by bubblewrap:\n{done.stderr}")
                return
        if version != "editable":
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
