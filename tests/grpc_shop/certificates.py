"""Certificates for tests: an authority, and certificates that it has signed."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


class Authority:
    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("ondot tests")
        self._certificate = self._sign(self._name, self._key.public_key(), None)

    @property
    def pem(self) -> str:
        return self._certificate.public_bytes(Encoding.PEM).decode()

    def issue(self, host: str) -> tuple[str, str]:
        """A certificate for a host, and its private key, as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(_name(host), key.public_key(), host)
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return certificate.public_bytes(Encoding.PEM).decode(), text.decode()

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, host: str | None) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=host is None, path_length=None), critical=True)
        )
        if host is not None:
            is_address = host[0].isdecimal()
            name: x509.GeneralName = x509.IPAddress(ip_address(host)) if is_address else x509.DNSName(host)
            builder = builder.add_extension(x509.SubjectAlternativeName([name]), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
