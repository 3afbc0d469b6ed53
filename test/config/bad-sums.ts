import { api, type BadFile, engine, KV, kv, ssd } from "./bad-file.ts";

/** Files in which each key is right in itself. */
export const SUMS: readonly BadFile[] = [
  ["SSD without a cap", kv('ssd_dir = "/mnt/x"'), ["3:11 kv.ssd_dir", "write ssd_gib = 500"]],
  ["SSD without a folder", kv("ssd_gib = 4"), ["3:11 kv.ssd_gib", "write ssd_dir ="]],
  ["index without an SSD", kv('index_dir = "/x"'), ["3:13 kv.index_dir", "without ssd_dir"]],
  ["index in ssd_dir itself", ssd("/m", 'index_dir = "/m"'), ["5:13 kv.index_dir", "itself"]],
  [
    "index among the block files",
    ssd("/m", 'index_dir = "/m/0f"'),
    ["5:13 kv.index_dir", '"/m/index"'],
  ],
  [
    "index deep among the block files",
    ssd("/m", 'index_dir = "/m/x/../0f/index"'),
    ["5:13 kv.index_dir", "block files"],
  ],
  [
    "more SSD than its table has memory",
    '[kv]\nram_gib = 8\nssd_dir = "/m"\nssd_gib = 10000\n',
    ["4:11 kv.ssd_gib", "lower kv.blocks_max"],
  ],
  [
    "deadline beyond the lease",
    engine('lease = "1s"'),
    ["4:9 engine.lease", "acquire_deadline 2s"],
  ],
  [
    "deadline equals the lease",
    engine('lease = "5s"', 'acquire_deadline = "5s"'),
    ["5:20 engine.acquire_deadline", "use less than 5s"],
  ],
  [
    "open to the network without a token",
    api('listen = "0.0.0.0:7171"'),
    ["4:10 api.listen", "token_file"],
  ],
  ["open on IPv6 without a token", api('listen = "[::]:7171"'), ["4:10 api.listen", "token_file"]],
  [
    "open under a host name",
    api('listen = "gpu-1.example.org:7171"'),
    ["4:10 api.listen", "token_file"],
  ],
  [
    "open to the network with TLS and nobody's certificate",
    api('listen = "0.0.0.0:7171"', 'tls_cert_file = "/c"', 'tls_key_file = "/k"'),
    ["4:10 api.listen", "tls_client_ca_file"],
  ],
  [
    "a certificate without its key",
    api('tls_cert_file = "/c"'),
    ["4:17 api.tls_cert_file", "both"],
  ],
  ["a key without its certificate", api('tls_key_file = "/k"'), ["4:16 api.tls_key_file", "both"]],
  [
    "certificates of callers without TLS",
    api('tls_client_ca_file = "/c"'),
    ["4:22 api.tls_client_ca_file", "set tls_cert_file"],
  ],
  [
    "one owner above all of them",
    `${KV}[control]\npin_share = 0.2\n`,
    ["4:13 control.pin_share", "pin_share_owner 0.25 is above"],
  ],
  [
    "a certificate for NATS without its key",
    `${KV}[nats]\ncert_file = "/c"\n`,
    ["4:13 nats.cert_file", "both or none"],
  ],
  ["more RAM than the machine", "[kv]\nram_gib = 17\n", ["2:11 kv.ram_gib", "use less than 16GiB"]],
  [
    "all of the machine's RAM",
    "[kv]\nram_gib = 16\n",
    ["2:11 kv.ram_gib", "for the table of them"],
  ],
  [
    "a table larger than the rest",
    kv("blocks_max = 100_000_000"),
    ["3:14 kv.blocks_max", "20.49GiB"],
  ],
];
