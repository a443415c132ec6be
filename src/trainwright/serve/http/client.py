"""A client of a served ensemble: arrays in, answers out, over HTTP with binary tensors."""

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import numpy as np

from trainwright.ensemble.combine.uncertainty import Uncertainty
from trainwright.ensemble.metrics import Array
from trainwright.errors import DeadlinePassed, MissingExtra, NotReady, Overloaded, RequestError, ServeError
from trainwright.serve.http.tensors import HEADER_LENGTH, SIZE, TrailingBytes, encode_tensor, read_values
from trainwright.serve.service import Options, Response

if TYPE_CHECKING:
    import httpx
    import torch

__all__ = ["Client", "encode", "read_answer"]

_AGAIN = {429: Overloaded, 503: NotReady}


class Client:
    """Asks a server at `url`: `with Client(url) as client: client.predict(x)`. For one thread at a time.

    Where the server is full (429) or not ready (503) it asks again after the time that the server names, for at most
    `give_up_seconds` in all; then the error is raised: Overloaded or NotReady, DeadlinePassed, RequestError with the
    server's sentence for what was asked wrongly, ServeError for anything else. `binary=False` sends and asks for JSON.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        name: str = "ensemble",
        binary: bool = True,
        timeout_seconds: float = 60.0,
        give_up_seconds: float = 30.0,
    ) -> None:
        with MissingExtra.instead_of_import_error("a client", "httpx", "serve"):
            import httpx
        self._name, self._binary, self._give_up_seconds = name, binary, give_up_seconds
        # To compress numbers takes longer than to send them.
        headers = {"Accept-Encoding": "identity"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        place = urlsplit(url)
        if place.scheme not in {"http", "https"} or not place.hostname:
            raise RequestError(f"Client, url: got {url!r}; allowed: http://host:port")
        # Else no certificates are read, which takes longer than an answer.
        secure = place.scheme == "https"
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout_seconds, verify=secure)

    def predict(self, x: "Array | torch.Tensor", *, deadline_ms: float | None = None) -> Array:
        """Return the combined prediction for rows x [N, ...] in float64, as `Ensemble.predict` does."""
        return self.ask(x, Options(deadline_ms=deadline_ms)).prediction

    def ask(self, x: "Array | torch.Tensor", options: Options | None = None) -> Response:
        """Return the full response: its members, and their predictions or uncertainty if the options ask for them."""
        body, headers = encode(np.asarray(x), Options() if options is None else options, binary=self._binary)
        reply = self._send_request("POST", f"/v2/models/{self._name}/infer", content=body, headers=headers)
        return read_answer(reply.content, reply.headers.get(HEADER_LENGTH))

    def ready(self) -> bool:
        """Say whether the server admits requests now; False too where none answers."""
        import httpx

        try:
            return self._http.get("/v2/health/ready").status_code == 200
        except httpx.TransportError:
            return False

    def metadata(self) -> Mapping[str, Any]:
        """Return the protocol's metadata: names, dtypes and shapes of inputs and outputs."""
        return self._get_object(f"/v2/models/{self._name}")

    def ensemble(self) -> Mapping[str, Any]:
        """Return members, weights and rule, and how the ensemble is served now."""
        return self._get_object(f"/v2/ensembles/{self._name}")

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _get_object(self, path: str) -> Mapping[str, Any]:
        found: dict[str, Any] = self._send_request("GET", path).json()
        return found

    def _send_request(self, method: str, path: str, **content: Any) -> "httpx.Response":
        import httpx

        # Refusals that name a time to ask again are retried until the limit would be passed.
        until = time.monotonic() + self._give_up_seconds
        while True:
            try:
                reply = self._http.request(method, path, **content)
            except httpx.TimeoutException as error:
                raise DeadlinePassed(f"{self._http.base_url}: no reply within the client's timeout_seconds") from error
            except httpx.TransportError as error:
                raise ServeError(f"{self._http.base_url}: cannot be asked ({error}); is the server there?") from error
            if reply.status_code == 200:
                return reply
            # NotReady is an Overloaded too: both name a time after which to ask again.
            refusal = _read_refusal(reply)
            if not isinstance(refusal, Overloaded) or time.monotonic() + refusal.retry_after_seconds > until:
                raise refusal
            time.sleep(refusal.retry_after_seconds)


def encode(x: Array, options: Options, *, binary: bool) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of an inference request for rows x [N, ...]."""
    tensor, behind = encode_tensor("input", x, binary=binary)
    asked = {
        "return_members": options.members or None,
        "return_uncertainty": options.uncertainty or None,
        "return_conformal": options.conformal or None,
        "deadline_ms": options.deadline_ms,
        "binary_data_output": binary or None,
    }
    content = {"inputs": [tensor], "parameters": {name: value for name, value in asked.items() if value is not None}}
    head = json.dumps(content).encode()
    if not binary:
        return head, {"Content-Type": "application/json"}
    # So that the values behind it lie aligned and need no copy.
    head += b" " * (-len(head) % 16)
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(head))}
    return b"".join([head, *behind]), headers


def read_answer(body: bytes, header_length: str | None) -> Response:
    """Return the answer in the body of a reply."""
    length = len(body) if header_length is None else int(header_length)
    try:
        content = json.loads(body[:length])
        behind = TrailingBytes(memoryview(body)[length:])
        outputs = {
            one["name"]: read_values(
                one["datatype"],
                one["shape"],
                where=one["name"],
                data=one.get("data"),
                size=one.get("parameters", {}).get(SIZE),
                behind=behind,
            )
            for one in content["outputs"]
        }
        parameters = content["parameters"]
        return Response(
            prediction=outputs["prediction"],
            used=tuple(parameters["members_used"]),
            missing={int(trial): why for trial, why in parameters["members_missing"].items()},
            weight=parameters["weight_used"],
            conformal=outputs.get("prediction_set", outputs.get("prediction_interval")),
            uncertainty=_read_uncertainty(outputs, parameters.get("uncertainty_measure")),
            members={int(name[7:]): values for name, values in outputs.items() if name.startswith("member_")},
        )
    except (KeyError, TypeError, ValueError, RequestError) as error:
        raise ServeError(
            f"reply: is none of a served ensemble ({error!r}); is another server at this address?"
        ) from error


def _read_uncertainty(outputs: Mapping[str, Array], measure: str | None) -> Uncertainty | None:
    if measure is None:
        return None
    return Uncertainty(
        measure=measure,
        total=outputs["uncertainty_total"],
        aleatoric=outputs.get("uncertainty_aleatoric"),
        epistemic=outputs["uncertainty_epistemic"],
    )


def _read_refusal(reply: "httpx.Response") -> ServeError:
    try:
        content = reply.json()
        text = str(content["error"])
    except (ValueError, KeyError, TypeError):
        text = f"status {reply.status_code}: {reply.text[:200]}"
    if reply.status_code in _AGAIN:
        try:
            after = float(reply.headers.get("Retry-After", "1"))
        except ValueError:  # a date, which our server does not send
            after = 1.0
        return _AGAIN[reply.status_code](text, after)
    if reply.status_code == 504:
        return DeadlinePassed(text)
    return RequestError(text) if 400 <= reply.status_code < 500 else ServeError(text)
