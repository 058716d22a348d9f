"""Pack and unpack tar.gz archives."""

from collections.abc import Mapping

from practicum.core import File, Score, Submission, Task
from practicum.domains import names
from practicum.domains.domain import Script
from practicum.domains.terminal import Terminal, say, script
from practicum.rewards.archive import members, pack
from practicum.rewards.canaries import canary, spoilt
from practicum.rewards.compare import difference, path_state, unusable
from practicum.rewards.parts import Check, checked
from practicum.sandbox.contract import Boxes


class Archives(Terminal):
    """Level 1: pack or unpack. Level 2: pack some, unpack elsewhere. Level 3: unpack, pack some."""

    name = "archives"

    def make(self, seed: int, level: int) -> Task:
        """A folder with files of two endings, laid out or packed."""
        rng = self.rng(seed, level)
        folder, archive, new, *stems = names.words(rng, rng.randint(8, 11))
        archive, new = f"{archive}.tar.gz", f"{new}.tar.gz" if level == 3 else new
        ending, other = rng.sample(("txt", "log", "csv", "md", "conf"), 2)
        files = {
            f"{folder}/{stem}.{other if at % 2 else ending}": f"{rng.randint(10, 99)} {stem}\n"
            for at, stem in enumerate(stems)
        }
        some = {path: text for path, text in files.items() if path.endswith(f".{ending}")}
        packing = level == 3 or rng.random() < 0.5
        result, place = (archive, "") if packing else ("", "" if level == 1 else f"{new}/")
        match level, packing:
            case 1, True:
                rule, command = f"Pack the folder {folder} into", f"tar czf {archive} {folder}"
                rule += f" the archive {archive}"
            case 1, False:
                rule, command = f"Unpack {archive} in the current folder", f"tar xzf {archive}"
            case 2, True:
                rule = f"Pack only the .{ending} files of the folder {folder} into {archive}"
                command = f"tar czf {archive} {folder}/*.{ending}"
            case 2, False:
                rule = f"Make the folder {new} and unpack {archive} into it"
                command = f"mkdir {new} && tar xzf {archive} -C {new}"
            case _:
                rule = f"Unpack {archive}, which holds the folder {folder}. Then pack only the "
                rule += f".{ending} files of {folder} into the new archive {new}"
                command = f"tar xzf {archive} && tar czf {new} {folder}/*.{ending}"
                result = new
        prompt = say(
            rng,
            "{rule}.",
            "{rule}. Use tar with gzip.",
            "Use tar. {rule}.",
            rule=rule,
        )
        laid = [File(path, text.encode()) for path, text in files.items()]
        packed = [File(archive, pack({path: text.encode() for path, text in files.items()}))]
        return self.task(
            seed,
            level,
            prompt,
            files=laid if packing and level < 3 else packed,
            artifacts=[result] if packing else [new if place else folder],
            gold=[command],
            archive=result,
            expected={
                place + path: text
                for path, text in (some if level > 1 and packing else files).items()
            },
        )

    async def judge(self, task: Task, submission: Submission, boxes: Boxes) -> Score:
        """Packed: exactly the expected files, else nothing. Unpacked: the share of files."""
        path, expected = task.truth["archive"], task.truth["expected"]
        if not path:
            states = [path_state(submission, p, "text", t) for p, t in expected.items()]
            return checked(states)
        if submission.text(path) is None:
            return checked([unusable(submission, path)])
        try:
            found = members(submission.artifacts[path].data)
        except ValueError as error:
            return checked([Check(path, False, str(error))])
        evidence = difference(_listing(expected), _listing(found))
        return checked([Check(path, not evidence, evidence)])

    def impossible(self, task: Task) -> Task:
        """A line more is expected in each file."""
        expected = task.truth["expected"].items()
        return canary(task, expected={path: spoilt(task, text) for path, text in expected})

    def attacks(self, task: Task) -> Mapping[str, Script]:
        """Empty, renamed, incomplete and spoilt results."""
        path, gold = task.truth["archive"], task.truth["gold"][0]
        if not path:
            made = " ".join(task.truth["expected"])
            return {
                "empty_files": script(f"mkdir -p $(dirname {made}); touch {made}"),
                "listing": script(f"tar tzf {task.files[0].path} > {task.artifacts[0]}"),
                "gold_spoilt": script(f"{gold}; for f in {made}; do echo more >> $f; done"),
                "claims": script(answer="unpacked"),
            }
        return {
            "empty_archive": script(f"tar czf {path} --files-from /dev/null"),
            "not_an_archive": script(f"echo {path} > {path}"),
            "folder": script(f"mkdir {path}"),
            "not_compressed": script(f"tar xzf *.gz; tar cf all.tar *; mv all.tar {path}"),
            "everything": script(f"touch more; tar czf {path} --exclude={path} *"),
            "old_archive": script(f"cp *.tar.gz {path}"),
            "linked_gold": script(f"{gold}; mv {path} elsewhere; ln -s elsewhere {path}"),
            "other_compression": script(
                f"{gold}; python3 -c \"import gzip, zlib; raw = gzip.open('{path}').read(); "
                f"open('{path}', 'wb').write(zlib.compress(raw))\""
            ),
            "cut_gold": script(f"{gold}; truncate -s -80 {path}"),
        }


def _listing(files: Mapping[str, str | bytes]) -> list[str]:
    """Sorted `path: content` lines of a set of files."""
    return sorted(
        f"{path}: {text if isinstance(text, str) else text.decode('utf-8', 'replace')}"
        for path, text in files.items()
    )
