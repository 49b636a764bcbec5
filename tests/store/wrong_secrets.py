"""Addresses of object stores with a mistake in or near their secret, which none may show.

What is secret in them has `hid` in it. Roots and lakes refuse them alike.
"""

from typing import Final

# The address, what is shown of it, and what its sentence says, both as regular expressions.
WRONG_SECRETS: Final = [
    ("s3://AKIA:hid/den@bucket/x", "s3://bucket/x", "is ambiguous: .* as %2F"),
    ("S3://AKIA:hid/den@bucket/x", "s3://bucket/x", "is ambiguous: .* as %2F"),
    ("s3://AKIA:h@d/hid/den@bucket/x", "s3://bucket/x", "is ambiguous: .* as %2F"),
    ("s3://AKIA%3Ahid/den@bucket/x", "s3://bucket/x", "is ambiguous: .* as %2F"),
    ("s3://my/user:hidden@bucket/x", "s3://bucket/x", "is ambiguous: .* as %2F"),
    ("s3:///AKIA:hidden@bucket/x", "s3://bucket/x", "is ambiguous: .* as %2F"),
    ("abfs://box:hid/den==@a.dfs.core.windows.net/x", "abfs://a.dfs.core.windows.net/x", "%2F"),
    ("gs://AKIA:hid/den@bucket/x", "gs://bucket/x", "is ambiguous: .* as %2F"),
    ("s3://AKIA:hidden@bucket/a@b", "s3://b", "@ in a path or an option as %40"),
    ("s3://AKIA:hidden@bucket/x?region=a@b", "s3://…", "@ in a path or an option as %40"),
    ("s3://AKIA:hid?den@bucket/x", "s3://…", r"\? and # .* %3F and %23"),
    ("s3://AKIA:hid#den@bucket/x", "s3://…", r"\? and # .* %3F and %23"),
    ("s3://AKIA:12?hidden@bucket/x", "s3://…", r"\? and # .* %3F and %23"),
    ("s3://AKIA:hidden/bucket/x", "s3://…", "before an @, as in s3://key:secret@bucket"),
    ("s3://AKIA:hidden", "s3://…", "before an @"),
    ("abfs://:hidden/box", "abfs://…", "before an @, as in abfs://container:key@account"),
    ("s3://AKIA:hid den@bucket/x", "s3://bucket/x", "two hexadecimal digits"),
    ("s3://AKIA:hid%ZZden@bucket/x", "s3://bucket/x", "two hexadecimal digits"),
    ("s3://AKIA:hid@den@bucket/x", "s3://bucket/x", "two hexadecimal digits"),
    ("s3://AKIA:hidé@bucket/x", "s3://bucket/x", "two hexadecimal digits"),
    # urlsplit raises for these two, and its text shows the secret.
    ("s3://AKIA:hid\uff0fden@bucket/x", "s3://bucket/x", "two hexadecimal digits"),
    ("s3://AKIA:hidden@[bucket/x", r"s3://\[bucket/x", "an address cannot have"),
    ("s3://AKIA:hid\nden@bucket/x", "s3://bucket/x", "a line break"),
    ("s3://AKIA:hidden@bucket:abc/x", "s3://bucket:abc/x", "a bucket has no port"),
    ("s3://b/x?endpoint_override=https://k:hidden@minio", "s3://b/x", "'endpoint_override'"),
    ("s3://b/x?endpoint_override=k%3Ahidden%40minio", "s3://b/x", "'endpoint_override'"),
    ("abfs://b@c/x?client_secret=x&hidDen&hid9=1", "abfs://c/x", "& in a value as %26"),
    # What would be a folder of this machine, if nobody looked.
    ("s3:/AKIA:hidden@bucket/x", "s3:…", "write s3://"),
    ("S3:/AKIA:hidden@bucket/x", "s3:…", "write s3://"),
    ("s3:AKIA:hidden@bucket/x", "s3:…", "write s3://"),
    ("s3//AKIA:hidden@bucket/x", "s3:…", "write s3://"),
    ("s3;//AKIA:hidden@bucket/x", "s3:…", "write s3://"),
    ("gs:/AKIA:hidden@bucket/x", "gs:…", "write gs://"),
    ("abfs:/box:hidden@a.dfs.core.windows.net/x", "abfs:…", "write abfs://"),
    ("s3a:/AKIA:hidden@bucket/x", "s3a:…", "write s3://"),
    ("ss3:/AKIA:hidden@bucket/x", "…", "begin it with ./"),
    ("AKIA:hid/den@bucket/x", "…", "begin it with ./"),
    ("AKIA:hidden@bucket/x", "…", "begin it with ./"),
]
