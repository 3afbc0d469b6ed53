/**
 * Files that must be refused. Each row: what it tries, the text, and for every problem expected, in
 * order, `line:column key` and a part of what is said about it.
 */
export type BadFile = readonly [
  name: string,
  text: string,
  ...problems: readonly (readonly [at: string, says: string])[],
];

/** The least a file needs, so that nothing else is wrong. */
const KV = "[kv]\nram_gib = 1\n";

function kv(line: string): string {
  return `${KV}${line}\n`;
}

function engine(...lines: string[]): string {
  return `${KV}[engine]\n${lines.join("\n")}\n`;
}

function api(line: string): string {
  return `${KV}[api]\n${line}\n`;
}

const SYNTAX: readonly BadFile[] = [
  ["header without its bracket", "[kv\nram_gib = 1\n", ["1:4 kv", "no valid TOML"]],
  ["header without a name", `${KV}[]\n`, ["3:2 ", "no valid TOML"]],
  ["text after a header", "[kv] ram_gib = 1\n", ["1:6 kv", "no valid TOML"]],
  ["list header closed once", "[[kv]\nram_gib = 1\n", ["1:6 kv", "no valid TOML"]],
  ["key without value", kv("policy ="), ["3:9 kv.policy", "no valid TOML"]],
  ["key alone", kv("policy"), ["3:7 kv.policy", "no valid TOML"]],
  ["colon for equals", kv('policy: "lru"'), ["3:7 kv.policy", "no valid TOML"]],
  ["value without key", kv('= "lru"'), ["3:1 kv", "no valid TOML"]],
  ["size without quotes", "[kv]\nram = 64GiB\n", ["2:9 kv.ram", 'ram = "64GiB"']],
  ["duration without quotes", kv("evict_interval = 1s"), ["3:19 kv.evict_interval", '"1s"']],
  ["word without quotes", kv("policy = lru"), ["3:10 kv.policy", 'policy = "lru"']],
  ["path without quotes", engine("socket = /run/e.sock"), ["4:10 engine.socket", '"/run/e.sock"']],
  ["address without quotes", api("listen = 127.0.0.1:7171"), ["4:15 api.listen", "in quotes"]],
  ["boolean in capitals", kv("lock_memory = True"), ["3:15 kv.lock_memory", "lock_memory = true"]],
  ["string not closed", kv('policy = "lru'), ["3:10 kv.policy", "no valid TOML"]],
  ["long string not closed", kv('policy = """lru\nx'), ["3:10 kv.policy", "no valid TOML"]],
  ["unknown escape", kv('policy = "l\\qru"'), ["3:13 kv.policy", "no valid TOML"]],
  ["array not closed", kv("policy = [1, 2"), ["3:10 kv.policy", "no valid TOML"]],
  ["inline table not closed", "kv = { ram_gib = 1\n", ["1:6 kv", "no valid TOML"]],
  ["number with two points", kv("high_water = 0.9.5"), ["3:17 kv.high_water", "no valid TOML"]],
  ["number with a leading zero", kv("blocks_max = 0123"), ["3:14 kv.blocks_max", "leading zero"]],
  ["number with a percent sign", kv("high_water = 95%"), ["3:16 kv.high_water", "no valid TOML"]],
  ["two keys on one line", kv('policy = "lru" high_water = 1'), ["3:16 kv.policy", "end-of-line"]],
  ["key with a space", kv('pol icy = "lru"'), ["3:5 kv.pol", "no valid TOML"]],
  ["key with an umlaut", kv('pölicy = "lru"'), ["3:2 kv.p", "no valid TOML"]],
  ["JSON instead of TOML", '{ "kv": { "ram_gib": 1 } }\n', ["1:1 ", "no valid TOML"]],
  ["YAML instead of TOML", "kv:\n  ram_gib: 1\n", ["1:3 kv", "no valid TOML"]],
  ["a date that does not exist", kv("policy = 2026-13-01"), ["3:10 kv.policy", "invalid date"]],
  ["a control character", kv('policy = "l\u0001u"'), ["3:12 kv.policy", "no valid TOML"]],
  ["nesting beyond reason", `kv = ${"[".repeat(500)}\n`, ["1:38 kv", "nested"]],
  [
    "a broken line, then others",
    "[kv]\nram_gib = 1GiB\nfoo = 1\npolicy = 2\n",
    ["2:12 kv.ram_gib", "no valid TOML"],
    ["3:1 kv.foo", "unknown key"],
    ["4:10 kv.policy", "number 2"],
  ],
];

const TWICE: readonly BadFile[] = [
  ["key twice", kv("ram_gib = 2"), ["3:1 kv.ram_gib", "first on line 2"]],
  ["key twice, once quoted", kv('"ram_gib" = 2'), ["3:1 kv.ram_gib", "first on line 2"]],
  ["key twice, once escaped", kv('"ram\\u005fgib" = 2'), ["3:1 kv.ram_gib", "first on line 2"]],
  [
    "key twice, three times",
    kv('policy = "lru"\npolicy = "lru"\npolicy = "lru"'),
    ["4:1 kv.policy", "first on line 3"],
    ["5:1 kv.policy", "first on line 3"],
  ],
  ["section twice", `${KV}[log]\n[kv]\npolicy = "lru"\n`, ["4:1 kv", "first on line 1"]],
  ["section and dotted key", `kv.policy = "lru"\n${KV}`, ["2:2 kv", "already defined"]],
  [
    "key twice in an inline table",
    "kv = { ram_gib = 1, ram_gib = 2 }\n",
    ["1:21 kv", "already defined"],
  ],
  ["both ways to say the RAM", kv('ram = "1GiB"'), ["3:1 kv.ram", "same as kv.ram_gib"]],
  [
    "both ways, the other first",
    '[kv]\nram = "1GiB"\nram_gib = 1\n',
    ["3:1 kv.ram_gib", "same as kv.ram"],
  ],
];

const NAMES: readonly BadFile[] = [
  ["unknown key", kv("colour = 3"), ["3:1 kv.colour", "unknown key; [kv] has ram_gib"]],
  ["misspelt key", kv("high_watr = 0.9"), ["3:1 kv.high_watr", "did you mean high_water"]],
  ["two letters swapped", kv("low_watre = 0.9"), ["3:1 kv.low_watre", "did you mean low_water"]],
  ["dashes for underscores", kv("low-water = 0.9"), ["3:1 kv.low-water", "did you mean low_water"]],
  ["capitals", kv('Policy = "lru"'), ["3:1 kv.Policy", "did you mean policy"]],
  [
    "misspelt and therefore missing",
    "[kv]\nram_gb = 1\n",
    ["2:1 kv.ram_gb", "did you mean ram_gib"],
  ],
  ["key of another section", kv('listen = "127.0.0.1:1"'), ["3:1 kv.listen", "belongs in [api]"]],
  [
    "key of another section, quoted",
    kv('"socket" = "/a"'),
    ["3:1 kv.socket", "belongs in [engine]"],
  ],
  ["unknown key after a long comment", kv("# ram = [\n# '''\nx = 1"), ["5:1 kv.x", "unknown key"]],
  [
    "unknown key after a long string",
    '[log]\nlevel = """\ninfo"""\nx = 1\n[kv]\nram_gib = 1\n',
    ["4:1 log.x", "unknown key"],
  ],
  ["indented key", kv("\t  x = 1"), ["3:4 kv.x", "unknown key"]],
  ["windows line ends", "[kv]\r\nram_gib = 1\r\nx = 1\r\n", ["3:1 kv.x", "unknown key"]],
  ["byte order mark", "\ufeff[kv]\nram_gib = 1\nx = 1\n", ["3:1 kv.x", "unknown key"]],
  ["dotted key", "kv.ram_gib = 1\nkv.x = 1\n", ["2:4 kv.x", "unknown key"]],
  ["dotted key with spaces", 'kv.ram_gib = 1\nkv . "x" = 1\n', ["2:6 kv.x", "unknown key"]],
  ["inline table", "kv = { ram_gib = 1, x = 1 }\n", ["1:21 kv.x", "unknown key"]],
  ["inline table over lines", "kv = {\n  ram_gib = 1,\n  x = 1,\n}\n", ["3:3 kv.x", "unknown key"]],
  ["deep key", kv("x.y.z = 1"), ["3:1 kv.x", "unknown key"]],
  ["table in a section", `${KV}[kv.x]\ny = 1\n`, ["3:5 kv.x", "unknown key"]],
  ["empty key", kv('"" = 1'), ['3:1 kv.""', "unknown key"]],
  ["key that steers a terminal", kv('"\\u001b[2J" = 1'), ['3:1 kv."\\u001b[2J"', "unknown key"]],
  ["prototype key", kv("__proto__ = 1"), ["3:1 kv.__proto__", "unknown key"]],
  ["constructor key", kv("constructor = 1"), ["3:1 kv.constructor", "unknown key"]],
  [
    "section of a later version",
    `${KV}[nats]\nurl = "nats://a"\n`,
    ["3:2 nats", "unknown section"],
  ],
  ["another one", `${KV}[peers]\n`, ["3:2 peers", "[node] [kv] [engine] [api] [log]"]],
  ["section of a later version, dotted", `nats.url = "x"\n${KV}`, ["1:1 nats", "unknown section"]],
  ["misspelt section", `${KV}[engin]\n`, ["3:2 engin", "did you mean [engine]"]],
  ["section in capitals", `${KV}[LOG]\n`, ["3:2 LOG", "did you mean [log]"]],
  ["prototype section", `${KV}[__proto__]\nx = 1\n`, ["3:2 __proto__", "unknown section"]],
  ["key outside any section", `port = 1\n${KV}`, ["1:1 port", "outside any section"]],
  ["known key outside any section", `ram_gib = 1\n${KV}`, ["1:1 ram_gib", "belongs in [kv]"]],
  ["section that is a value", "kv = 3\n", ["1:1 kv", "is the number 3, not a section"]],
  ["section that is a list", "[[kv]]\nram_gib = 1\n", ["1:3 kv", "list of tables"]],
  ["section that is an array", "kv = [1]\n", ["1:1 kv", "not a section"]],
  ["empty file", "", ["1:1 kv.ram_gib", "is missing"]],
  ["comments only", "# nothing\n", ["1:1 kv.ram_gib", "is missing"]],
  ["section without its required key", "\n[log]\n[kv]\n", ["3:2 kv.ram_gib", "is missing"]],
];

const TYPES: readonly BadFile[] = [
  ["GiB as string", '[kv]\nram_gib = "64"\n', ["2:11 kv.ram_gib", "not a number of GiB"]],
  ["GiB as size", '[kv]\nram_gib = "64GiB"\n', ["2:11 kv.ram_gib", 'kv.ram = "64GiB"']],
  ["GiB as boolean", "[kv]\nram_gib = true\n", ["2:11 kv.ram_gib", "the boolean true"]],
  ["GiB not a number", "[kv]\nram_gib = nan\n", ["2:11 kv.ram_gib", "not a number of GiB"]],
  ["GiB infinite", "[kv]\nram_gib = inf\n", ["2:11 kv.ram_gib", "not a number of GiB"]],
  ["GiB zero", "[kv]\nram_gib = 0\n", ["2:11 kv.ram_gib", "too small"]],
  ["GiB negative", "[kv]\nram_gib = -4\n", ["2:11 kv.ram_gib", "too small"]],
  ["GiB beyond all machines", "[kv]\nram_gib = 1e9\n", ["2:11 kv.ram_gib", "too large"]],
  ["GiB beyond 2^53", "[kv]\nram_gib = 99999999999999999999\n", ["2:11 kv.ram_gib", "beyond 2^53"]],
  ["size as number", "[kv]\nram = 64\n", ["2:7 kv.ram", "the number 64"]],
  ["size without unit", '[kv]\nram = "64"\n', ["2:7 kv.ram", "wants a number and a unit"]],
  ["size in decimal units", '[kv]\nram = "64GB"\n', ["2:7 kv.ram", 'unknown unit "GB"']],
  ["size in small letters", '[kv]\nram = "64gib"\n', ["2:7 kv.ram", 'unknown unit "gib"']],
  ["size with a prototype unit", '[kv]\nram = "64constructor"\n', ["2:7 kv.ram", "unknown unit"]],
  ["size negative", '[kv]\nram = "-64GiB"\n', ["2:7 kv.ram", "wants a number"]],
  ["size of half a byte", '[kv]\nram = "1.5B"\n', ["2:7 kv.ram", "not a whole number"]],
  ["size empty", '[kv]\nram = ""\n', ["2:7 kv.ram", "wants a number"]],
  ["size too small", '[kv]\nram = "512KiB"\n', ["2:7 kv.ram", "too small"]],
  ["size too large", '[kv]\nram = "99999999TiB"\n', ["2:7 kv.ram", "is too large"]],
  [
    "slice not in pages",
    kv('prefault_slice = "5000B"'),
    ["3:18 kv.prefault_slice", "multiple of 4KiB"],
  ],
  [
    "slice too large",
    kv('prefault_slice = "2GiB"'),
    ["3:18 kv.prefault_slice", "use 4KiB to 1GiB"],
  ],
  ["duration as number", engine("lease = 30"), ["4:9 engine.lease", "the number 30"]],
  [
    "duration in words",
    engine('lease = "30 seconds"'),
    ["4:9 engine.lease", 'unknown unit "seconds"'],
  ],
  [
    "duration compound",
    engine('lease = "1m30s"'),
    ["4:9 engine.lease", "wants a number and a unit"],
  ],
  ["duration too short", engine('lease = "10ms"'), ["4:9 engine.lease", "too small"]],
  ["duration too long", engine('lease = "7d"'), ["4:9 engine.lease", "use 1s to 1h"]],
  [
    "walk less than once a second",
    kv('evict_interval = "2s"'),
    ["3:18 kv.evict_interval", "10ms to 1s"],
  ],
  [
    "integer as string",
    engine('clients_max = "256"'),
    ["4:15 engine.clients_max", "not a whole number"],
  ],
  [
    "integer with a fraction",
    engine("clients_max = 2.5"),
    ["4:15 engine.clients_max", "not a whole"],
  ],
  ["integer zero", engine("clients_max = 0"), ["4:15 engine.clients_max", "use 1 to 4096"]],
  [
    "integer too large",
    engine("clients_max = 1_000_000"),
    ["4:15 engine.clients_max", "too large"],
  ],
  ["integer beyond 2^53", kv("blocks_max = 99999999999999999999"), ["3:14 kv.blocks_max", "2^53"]],
  [
    "integer negative",
    engine("gpu_window_blocks = -1"),
    ["4:21 engine.gpu_window_blocks", "too small"],
  ],
  ["ratio as string", kv('high_water = "0.9"'), ["3:14 kv.high_water", "not a number"]],
  ["ratio as percent", kv("high_water = 95"), ["3:14 kv.high_water", "use 0.05 to 1"]],
  ["ratio negative", kv("low_water = -0.1"), ["3:13 kv.low_water", "use 0 to 0.99"]],
  ["ratio not a number", kv("low_water = nan"), ["3:13 kv.low_water", "not a number"]],
  ["word unknown", kv('policy = "arc"'), ["3:10 kv.policy", 'use "lru"']],
  ["word in capitals", kv('lock_memory = "TRY"'), ["3:15 kv.lock_memory", "use one of"]],
  [
    "word as boolean",
    kv("huge_pages = true"),
    ["3:14 kv.huge_pages", 'one of "try", "require", "off"'],
  ],
  ["word as array", kv('policy = ["lru"]'), ["3:10 kv.policy", "is an array"]],
  ["word as table", kv('policy = { is = "lru" }'), ["3:10 kv.policy", "is a table"]],
  ["word as date", kv("policy = 2026-01-01"), ["3:10 kv.policy", "is a date"]],
  ["level unknown", `${KV}[log]\nlevel = "verbose"\n`, ["4:9 log.level", '"debug"']],
  ["format unknown", `${KV}[log]\nformat = "xml"\n`, ["4:10 log.format", '"text", "json"']],
  ["worker id empty", `${KV}[node]\nid = ""\n`, ["4:6 node.id", "no worker id"]],
  ["worker id with dots", `${KV}[node]\nid = "a.b"\n`, ["4:6 node.id", "no worker id"]],
  ["worker id with a wildcard", `${KV}[node]\nid = "gpu-*"\n`, ["4:6 node.id", "no worker id"]],
  ["worker id too long", `${KV}[node]\nid = "${"a".repeat(65)}"\n`, ["4:6 node.id", "1 to 64"]],
  ["worker id as number", `${KV}[node]\nid = 7\n`, ["4:6 node.id", "not a string"]],
  ["worker id over two lines", `${KV}[node]\nid = "a\\nb"\n`, ["4:6 node.id", 'is "a\\nb"']],
  [
    "socket not absolute",
    engine('socket = "engine.sock"'),
    ["4:10 engine.socket", "not an absolute path"],
  ],
  ["socket a folder", engine('socket = "/run/hearth/"'), ["4:10 engine.socket", "a folder"]],
  [
    "socket too long",
    engine(`socket = "/${"a".repeat(107)}"`),
    ["4:10 engine.socket", "108 bytes"],
  ],
  [
    "socket too long in bytes",
    engine(`socket = "/${"ä".repeat(54)}"`),
    ["4:10 engine.socket", "109 bytes"],
  ],
  [
    "socket with a NUL",
    engine('socket = "/run/\\u0000x"'),
    ["4:10 engine.socket", "control character"],
  ],
  ["socket empty", engine('socket = ""'), ["4:10 engine.socket", "not an absolute path"]],
  [
    "group with a space",
    engine('socket_group = "my group"'),
    ["4:16 engine.socket_group", "group name"],
  ],
  ["group as number", engine("socket_group = 100"), ["4:16 engine.socket_group", "not a string"]],
  [
    "listen without port",
    api('listen = "127.0.0.1"'),
    ["4:10 api.listen", "no address with a port"],
  ],
  ["listen without address", api('listen = ":7171"'), ["4:10 api.listen", "names no address"]],
  ["listen on a port alone", api("listen = 7171"), ["4:10 api.listen", "not an address"]],
  [
    "listen on a port too high",
    api('listen = "127.0.0.1:65536"'),
    ["4:10 api.listen", "port 65536"],
  ],
  [
    "listen on a broken address",
    api('listen = "127.0.0.256:1"'),
    ["4:10 api.listen", "holds no address"],
  ],
  [
    "listen on IPv6 without brackets",
    api('listen = "::1:7171"'),
    ["4:10 api.listen", "[::1]:7171"],
  ],
  [
    "listen on broken IPv6",
    api('listen = "[::g]:7171"'),
    ["4:10 api.listen", "no address with a port"],
  ],
  [
    "listen on a URL",
    api('listen = "http://127.0.0.1:1"'),
    ["4:10 api.listen", "no address with a port"],
  ],
  [
    "token file not absolute",
    api('token_file = "token"'),
    ["4:14 api.token_file", "not an absolute path"],
  ],
];

const SUMS: readonly BadFile[] = [
  ["low above high", kv("low_water = 0.97"), ["3:13 kv.low_water", "not below high_water 0.95"]],
  ["low equals high", kv("high_water = 0.9\nlow_water = 0.9"), ["4:13 kv.low_water", "not below"]],
  [
    "high below the default of low",
    kv("high_water = 0.5"),
    ["3:14 kv.high_water", "low_water 0.9"],
  ],
  [
    "frame too small for its items",
    engine('frame_max = "64KiB"'),
    ["4:13 engine.frame_max", "321KiB"],
  ],
  [
    "items too many for the frame",
    engine("items_max = 20000"),
    ["4:13 engine.items_max", "at most 13106"],
  ],
  [
    "frame not in eights",
    engine('frame_max = "500001B"'),
    ["4:13 engine.frame_max", "multiple of 8B"],
  ],
  [
    "fewer handles than items",
    engine("handles_max = 100"),
    ["4:15 engine.handles_max", "at least 4096"],
  ],
  [
    "unread below one frame",
    engine('unread_max = "512KiB"'),
    ["4:14 engine.unread_max", "at least 1MiB"],
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
  ["table smaller than the mirror", kv("blocks_max = 1000"), ["3:14 kv.blocks_max", "262144"]],
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
  ["more RAM than the machine", "[kv]\nram_gib = 17\n", ["2:11 kv.ram_gib", "use less than 16GiB"]],
  [
    "more RAM than the machine, as a size",
    '[kv]\nram = "64GiB"\n',
    ["2:7 kv.ram", "64GiB is more"],
  ],
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

export const BAD_FILES: readonly BadFile[] = [...SYNTAX, ...TWICE, ...NAMES, ...TYPES, ...SUMS];
