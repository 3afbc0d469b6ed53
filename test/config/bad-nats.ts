import { type BadFile, KV } from "./bad-file.ts";

function nats(...lines: string[]): string {
  return `${KV}[nats]\n${lines.join("\n")}\n`;
}

/** [nats]: each key alone, and those that depend on another. */
export const NATS: readonly BadFile[] = [
  ["NATS URL without a scheme", nats('url = "host:4222"'), ["4:7 nats.url", "is not a NATS URL"]],
  ["NATS URL of a website", nats('url = "http://host"'), ["4:7 nats.url", "is not a NATS URL"]],
  ["NATS URL without a host", nats('url = "nats://:4222"'), ["4:7 nats.url", "is not a NATS URL"]],
  ["NATS URL with a path", nats('url = "nats://a/b"', ""), ["4:7 nats.url", "is not a NATS URL"]],
  ["NATS URLs with a hole", nats('url = "nats://a,,nats://b"'), ["4:7 nats.url", "not a NATS URL"]],
  ["NATS URLs of two sorts", nats('url = "nats://a,ws://b"'), ["4:7 nats.url", "mixes TCP"]],
  [
    "NATS port that is none",
    nats('url = "nats://h:99999"'),
    ["4:7 nats.url", "invalid port or address"],
  ],
  ["NATS host that is none", nats('url = "nats://[::x]"'), ["4:7 nats.url", "is not a NATS URL"]],
  [
    "NATS address that is none",
    nats('url = "nats://[1:2]"'),
    ["4:7 nats.url", "invalid port or addr"],
  ],
  [
    "NATS URLs of two users",
    nats('url = "nats://a:b@h,nats://c:d@g"'),
    ["4:7 nats.url", "different credentials"],
  ],
  ["NATS URL as a number", nats("url = 4222"), ["4:7 nats.url", "is not a string"]],
  [
    "two ways to say who we are",
    nats('token_file = "/t"', 'user_file = "/u"'),
    ["4:14 nats.token_file", "keep one of"],
  ],
  ["a key for NATS alone", nats('key_file = "/k"'), ["4:12 nats.key_file", "both or none"]],
  ["unknown broadcast", nats('broadcast = "Warm,Drop"'), ["4:13 nats.broadcast", '"Drop"']],
  ["broadcast as an array", nats('broadcast = ["Warm"]'), ["4:13 nats.broadcast", "an array"]],
  ["no role", nats('role = "admin"'), ["4:8 nats.role", '"purge"']],
  [
    "stream with a dot",
    nats('url = "nats://a"', 'command_stream = "A.B"'),
    ["5:18 nats.command_stream", "not a valid stream name"],
  ],
  [
    "stream without a server",
    nats('command_stream = "A"'),
    ["4:18 nats.command_stream", "without url"],
  ],
  [
    "bucket without a server",
    nats('workers_bucket = "a"'),
    ["4:18 nats.workers_bucket", "without url"],
  ],
];
