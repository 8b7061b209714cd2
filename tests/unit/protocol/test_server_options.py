"""Certificates by flag: what is missing is named, and without any the usual way is taken."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from protocol.server_options import TlsOptions


@dataclass(frozen=True)
class Config(TlsOptions):
    pass


def test_without_certificates_urls_are_called_in_the_usual_way() -> None:
    config = Config()
    assert config.client_context() is None and not config.serves_tls
    config.check_tls()


@pytest.mark.parametrize("flag", ["ssl_keyfile", "ssl_ca_certs"])
def test_a_key_and_authorities_need_a_certificate(flag: str) -> None:
    with pytest.raises(ConfigError, match=f"--{flag.replace('_', '-')} needs --ssl-certfile"):
        Config(**{flag: "x.pem"}).check_tls()


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.pem")
    with pytest.raises(ConfigError, match=r"--ca-certs: .*none\.pem cannot be used: No such file"):
        Config(ca_certs=missing).client_context()
    for config in (Config(ssl_certfile=missing), Config(ssl_certfile=missing, ssl_keyfile=missing)):
        assert config.serves_tls
        for use in (config.client_context, config.check_tls):
            with pytest.raises(ConfigError, match="--ssl-certfile, --ssl-keyfile: cannot be used"):
                use()


def test_authorities_of_the_fleet_are_added_to_the_usual_checks() -> None:
    paths = ssl.get_default_verify_paths()
    if paths.cafile is None:
        pytest.skip("this machine has no file of authorities")
    context = Config(ca_certs=paths.cafile).client_context()
    assert context is not None and context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED
