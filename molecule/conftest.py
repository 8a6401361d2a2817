"""What the scenarios' tests share."""

import json

import pytest

POST = """
import json, sys, urllib.error, urllib.request
url, token, content_type, body = sys.argv[1:]
headers = {"Content-Type": content_type, "Authorization": f"Bearer {token}", "X-Request-ID": "test-42"}
try:
    with urllib.request.urlopen(urllib.request.Request(url, body.encode(), headers), timeout=10) as answer:
        print(json.dumps([answer.status, json.load(answer)]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, json.load(error)]))
"""


@pytest.fixture(scope="session")
def post():
    """Send a request to an inference server, from a host, and return status and JSON body."""

    def send(host, url, token, body, content_type="application/json"):
        return json.loads(host.check_output("python3 -c %s %s %s %s %s", POST, url, token, content_type, body))

    return send
