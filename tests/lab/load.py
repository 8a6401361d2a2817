"""Ask a model from many threads and print how the requests ended, as JSON: outcome -> count.

It ends when the stop file appears, and at the latest after two minutes.
"""

import argparse
import collections
import http.client
import json
import threading
import time
from pathlib import Path

LIMIT_SECONDS = 120


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("token")
    parser.add_argument("stop", type=Path)
    parser.add_argument("--threads", type=int, default=100)
    arguments = parser.parse_args()
    body = json.dumps({"text": "The rollout was smooth."})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {arguments.token}"}
    outcomes = collections.Counter()
    end = time.monotonic() + LIMIT_SECONDS

    def ask():
        connection = http.client.HTTPConnection(arguments.host, arguments.port, timeout=30)
        while time.monotonic() < end and not arguments.stop.exists():
            try:
                connection.request("POST", "/predictions/text_classifier", body, headers)
                answer = connection.getresponse()
                answer.read()
                outcomes[str(answer.status)] += 1
            except (OSError, http.client.HTTPException) as error:
                outcomes[type(error).__name__] += 1
                connection.close()

    threads = [threading.Thread(target=ask) for _ in range(arguments.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
