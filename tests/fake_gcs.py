"""A bucket store in this process: Google Cloud Storage's JSON API, as far as TensorStore speaks it, and the
same objects as an fsspec file system under `gs://`."""

import contextlib
import http.server
import json
import os
import sys
import threading
import types
import urllib.parse

import fsspec
from etils.epath import backend
from fsspec.implementations.memory import MemoryFileSystem

_API, _UPLOAD = "/storage/v1/b/", "/upload/storage/v1/b/"


class FakeGCS(MemoryFileSystem):
  """gs:// in memory."""

  protocol = ("gs", "gcs")
  store: dict = {}
  pseudo_dirs = [""]

  @classmethod
  def _strip_protocol(cls, path):
    for prefix in ("gs://", "gcs://"):
      path = path.removeprefix(prefix)
    return super()._strip_protocol("/" + path.lstrip("/"))


class _Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = "HTTP/1.1"
  generations: dict = {}

  def log_message(self, *_):
    pass

  def _answer(self, status, body=b"", **headers):
    self.send_response(status)
    for name, value in headers.items():
      self.send_header(name.replace("_", "-"), str(value))
    self.send_header("Content-Length", str(len(body)))
    self.end_headers()
    self.wfile.write(body)

  def _parts(self, prefix):
    """(bucket, object or "", query)."""
    url = urllib.parse.urlsplit(self.path)
    bucket, _, rest = url.path.removeprefix(prefix).partition("/o")
    query = dict(urllib.parse.parse_qsl(url.query))
    return bucket, urllib.parse.unquote(rest.removeprefix("/")), query

  def _about(self, path):
    bucket, _, name = path.lstrip("/").partition("/")
    size, generation = len(FakeGCS().cat_file(path)), self.generations.get(path, 1)
    return {"bucket": bucket, "name": name, "size": str(size), "generation": str(generation)}

  def do_GET(self):
    bucket, name, query = self._parts(_API)
    store = FakeGCS()
    if not name:
      prefix = f"/{bucket}/{query.get('prefix', '')}"
      found = [self._about(path) for path in sorted(store.store) if path.startswith(prefix)]
      return self._answer(200, json.dumps({"items": found}).encode())
    path = f"/{bucket}/{name}"
    if path not in store.store:
      return self._answer(404)
    about = self._about(path)
    if query.get("ifGenerationNotMatch") == about["generation"]:
      return self._answer(304)
    if query.get("alt") != "media":
      return self._answer(200, json.dumps(about).encode())
    data, mark = store.cat_file(path), {"x_goog_generation": about["generation"]}
    if asked := self.headers.get("Range"):
      first, last = asked.removeprefix("bytes=").split("-")
      start = int(first) if first else len(data) - int(last)
      stop = min(int(last) + 1, len(data)) if first and last else len(data)
      return self._answer(
        206, data[start:stop], Content_Range=f"bytes {start}-{stop - 1}/{len(data)}", **mark
      )
    return self._answer(200, data, **mark)

  def do_POST(self):
    bucket, _, query = self._parts(_UPLOAD)
    path = f"/{bucket}/{query['name']}"
    data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
    there = self.generations.get(path, 1) if path in FakeGCS().store else 0
    if "ifGenerationMatch" in query and int(query["ifGenerationMatch"]) != there:
      return self._answer(412)
    FakeGCS().pipe_file(path, data)
    self.generations[path] = there + 1
    return self._answer(200, json.dumps(self._about(path)).encode())

  def do_DELETE(self):
    bucket, name, _ = self._parts(_API)
    found = FakeGCS().store.pop(f"/{bucket}/{name}", None)
    return self._answer(204 if found else 404)


class _Client:
  """Of the package google-cloud-storage, which Orbax asks what kind of bucket it is."""

  def get_bucket(self, name):
    return types.SimpleNamespace(name=name, hierarchical_namespace_enabled=False)


@contextlib.contextmanager
def serving():
  """Makes `gs://` mean this process, for fsspec, epath and TensorStore; yields the file system."""
  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
  threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
  os.environ["TENSORSTORE_GCS_HTTP_URL"] = f"http://127.0.0.1:{server.server_port}"
  for name in FakeGCS.protocol:
    fsspec.register_implementation(name, FakeGCS, clobber=True)
  backend.fsspec_backend._get_filesystem.cache_clear()
  package = types.ModuleType("google.cloud.storage")
  package.Client = _Client
  before = sys.modules.get(package.__name__)
  sys.modules[package.__name__] = package
  cloud = sys.modules.setdefault("google.cloud", types.ModuleType("google.cloud"))
  cloud.storage = package
  try:
    yield FakeGCS()
  finally:
    server.shutdown()
    server.server_close()
    if before is None:
      del sys.modules[package.__name__], cloud.storage
    FakeGCS.store.clear()
    del os.environ["TENSORSTORE_GCS_HTTP_URL"]
