# SPDX-License-Identifier: MIT
"""gdb on a process of a server, which stops it where it enters a function."""
import shutil
import subprocess
import threading

import pytest

from conftest import wait_for


class Debugger:
    def __init__(self, pid, function):
        if shutil.which("gdb") is None:
            pytest.skip("gdb is not installed (apt-get install gdb)")
        self.process = subprocess.Popen(["gdb", "-q", "-nx", "-p", str(pid)], stdin=subprocess.PIPE, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.seen = ""
        threading.Thread(target=self._read, daemon=True).start()
        self._ask("set pagination off", "set confirm off", f"break {function}", "echo is set\\n")
        wait_for(lambda: "is set" in self.seen or self.process.poll() is not None, "gdb has attached")
        if "Breakpoint 1 at" not in self.seen:
            self.process.kill()
            pytest.skip(f"gdb cannot stop the process of a server here: {self.seen[-300:]}")
        self._ask("continue")

    def _read(self):
        for line in self.process.stdout:
            self.seen += line

    def _ask(self, *lines):
        self.process.stdin.write("".join(f"{line}\n" for line in lines))
        self.process.stdin.flush()

    def wait(self):
        """Until the process stands there."""
        wait_for(lambda: "Breakpoint 1, " in self.seen, "the process is stopped")

    def end(self):
        """The process goes on."""
        self._ask("delete", "detach", "quit")
        self.process.wait(60)
