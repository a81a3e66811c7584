"""Users of an S3 server on a loopback port that looks at credentials and rights."""

from __future__ import annotations

import itertools
import json
import urllib.request
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_numbers = itertools.count()


@dataclass(frozen=True)
class User:
    """Credentials, as storage options and as the usual variables."""

    key: str
    secret: str
    token: str = ""

    @property
    def options(self) -> dict[str, str]:
        return {"key": self.key, "secret": self.secret} | ({"token": self.token} if self.token else {})

    @property
    def variables(self) -> dict[str, str]:
        found = {"AWS_ACCESS_KEY_ID": self.key, "AWS_SECRET_ACCESS_KEY": self.secret}
        return found | ({"AWS_SESSION_TOKEN": self.token} if self.token else {})


class Users:
    """Who may do what on the server."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.admin = self.user("admin", ["s3:*"])

    def client(self, service: str, user: User | None = None) -> Any:
        import boto3

        known = user or User("testing", "testing")
        return boto3.client(
            service,
            endpoint_url=self.server,
            region_name="us-east-1",
            aws_access_key_id=known.key,
            aws_secret_access_key=known.secret,
        )

    def user(self, name: str, actions: Sequence[str]) -> User:
        """Someone who may do this."""
        with closing(self.client("iam")) as iam:
            name = f"{name}-{next(_numbers)}"
            iam.create_user(UserName=name)
            iam.put_user_policy(UserName=name, PolicyName="rights", PolicyDocument=_policy(actions))
            made = iam.create_access_key(UserName=name)["AccessKey"]
        return User(made["AccessKeyId"], made["SecretAccessKey"])

    def session(self, name: str, actions: Sequence[str]) -> User:
        """Someone who may do this for a while, with a token."""
        with closing(self.client("iam")) as iam, closing(self.client("sts")) as sts:
            name = f"{name}-{next(_numbers)}"
            trust = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}
            document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
            role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=document)["Role"]["Arn"]
            iam.put_role_policy(RoleName=name, PolicyName="rights", PolicyDocument=_policy(actions))
            made = sts.assume_role(RoleArn=role, RoleSessionName=name)["Credentials"]
        return User(made["AccessKeyId"], made["SecretAccessKey"], made["SessionToken"])

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Let the server look at credentials and rights."""
        _look_after(self.server, "0")
        try:
            yield
        finally:
            _look_after(self.server, "inf")

    def objects(self, bucket: str) -> dict[str, bytes]:
        """Everything in a bucket."""
        with closing(self.client("s3", self.admin)) as s3:
            listed = s3.list_objects_v2(Bucket=bucket).get("Contents", [])
            return {item["Key"]: s3.get_object(Bucket=bucket, Key=item["Key"])["Body"].read() for item in listed}


def _policy(actions: Sequence[str]) -> str:
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def _look_after(server: str, requests: str) -> None:
    headers = {"Content-Type": "text/plain"}
    address = f"{server}/moto-api/reset-auth"
    urllib.request.urlopen(urllib.request.Request(address, requests.encode(), headers)).close()
