# SPDX-License-Identifier: MIT
"""Certificates for end-to-end tests, by openssl: an authority of its own a test, and whom it vouches for.

    authority = Authority(folder)
    authority.file                                     # what others must trust
    crt, key = authority.issue("server", "DNS:localhost")      # for a server; names only what is said
    crt, key = authority.issue("robot", password="secret")     # for a client, with a key that is encrypted
"""
import pathlib
import shutil
import subprocess

import pytest

EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
RSA = ("-newkey", "rsa:2048")


class Authority:
    def __init__(self, folder, name="authority"):
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed (apt-get install openssl)")
        self.folder = pathlib.Path(folder)
        self.file, self.key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        (self.folder / "openssl.cnf").write_text("[req]\ndistinguished_name = dn\n[dn]\n")  # nothing but what we say
        self.request(f"/CN={name}", self.file, self.key, "basicConstraints=critical,CA:TRUE", "-nodes")

    def request(self, subject, crt, key, extension, *more, kind=EC):
        subprocess.run(["openssl", "req", "-config", self.folder / "openssl.cnf", "-x509", *kind, "-days", "2", "-subj",
                        subject, "-addext", extension, "-keyout", key, "-out", crt, *more], check=True,
                       capture_output=True)

    def issue(self, name, *names, password=None, kind=EC):
        """For this common name, and these names of a server. Returns the files of the certificate and the key."""
        crt, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        extension = f"subjectAltName={','.join(names)}" if names else "extendedKeyUsage=clientAuth"
        self.request(f"/CN={name}", crt, key, extension, "-CA", self.file, "-CAkey", self.key,
                     *(["-passout", f"pass:{password}"] if password else ["-nodes"]), kind=kind)
        return crt, key
