import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import fc from "fast-check";
import {
  CONFIG_BYTES_MAX,
  formatProblem,
  parseConfig,
  renderConfig,
  renderConfigReference,
  renderSampleConfig,
  SCHEMA_KEYS,
} from "../../src/config/index.ts";
import { arbitraryConfig, configOf, NO_FACTS } from "./arbitrary-config.ts";
import { DEFAULTS } from "./defaults.ts";

const GIB = 2 ** 30;
const MINIMAL = "[kv]\nram_gib = 8\n";

describe("good files", () => {
  test("the least a file needs gives every default", () => {
    expect(configOf(MINIMAL)).toEqual(DEFAULTS);
  });

  test("the result is frozen all through", () => {
    const config = configOf(MINIMAL);
    expect(Object.isFrozen(config)).toBe(true);
    for (const section of Object.values(config)) expect(Object.isFrozen(section)).toBe(true);
    expect(Object.isFrozen(config.api.listen)).toBe(true);
  });

  test("RAM is given in GiB and in fractions of it, rounded down to pages", () => {
    expect(configOf("[kv]\nram_gib = 0.5").kv.ramBytes).toBe(GIB / 2);
    expect(configOf("[kv]\nram_gib = 0.3").kv.ramBytes % 4096).toBe(0);
    expect(configOf(`[kv]\nram_gib = ${1_048_577 / GIB}`).kv.ramBytes).toBe(2 ** 20);
  });

  test("inline tables, dotted keys, quoted keys and comments mean the same", () => {
    const written = [
      '[kv] # here\n"ram_gib" = 2\n\'policy\' = "lru"\n[log]\nlevel = "warn" # quiet\n',
      'kv = { ram_gib = 2, policy = "lru" }\nlog = { level = "warn" }\n',
      'kv.ram_gib = 2\nkv."policy" = "lru"\nlog.level = \'warn\'\n',
    ];
    for (const text of written) expect(configOf(text)).toEqual(configOf(written[0]!));
  });

  test("the worker id comes from the host name, made fit for subjects", () => {
    const idOf = (hostname: string) => configOf(MINIMAL, { hostname, memoryBytes: null }).node.id;
    expect(idOf("gpu-01.example.org")).toBe("gpu-01-example-org" as never);
    expect(idOf("-a b-")).toBe("a-b-" as never);
  });

  test("a host name that gives no worker id asks for one", () => {
    for (const hostname of [null, "", "..."]) {
      const result = parseConfig(MINIMAL, "f.toml", { hostname, memoryBytes: null });
      const problems = result.ok ? [] : result.problems.map(formatProblem);
      expect(problems).toEqual([
        "f.toml:1:1 node.id: is missing and has no default on this machine; " +
          'write id = "gpu-node-01" below [node]',
      ]);
    }
  });

  test("memory is compared with the machine only where it is known", () => {
    const text = "[kv]\nram_gib = 1000\n";
    expect(parseConfig(text, "f", NO_FACTS).ok).toBe(true);
    expect(parseConfig(text, "f", { hostname: "a", memoryBytes: GIB }).ok).toBe(false);
  });

  test("an SSD tier: where, how much, and what follows from it", () => {
    const { kv } = configOf(`${MINIMAL}ssd_dir = "/mnt/nvme"\nssd_gib = 4\n`);
    expect(kv).toMatchObject({ ssdDir: "/mnt/nvme", ssdBytes: 4 * GIB });
    expect(kv.indexDir).toBe("/mnt/nvme/index");
    expect(kv.blocksMax).toBe(8 * 32_768 + 4 * 4_096 + 262_144);
  });

  test("the index may lie elsewhere, and below ssd_dir outside the folders of block files", () => {
    for (const dir of ["/var/lib/x", "/mnt/nvme/a", "/mnt/nvme/ab.d", "/mnt/nvmes/ab", "/mnt"]) {
      const text = `${MINIMAL}ssd_dir = "/mnt/nvme"\nssd_gib = 4\nindex_dir = "${dir}"\n`;
      expect(configOf(text).kv.indexDir).toBe(dir);
    }
  });

  test("off is written as such, or as 0", () => {
    for (const off of ['"off"', "0"]) {
      const { kv } = configOf(`${MINIMAL}ssd_ttl = ${off}\nscrub_rate = ${off}\n`);
      expect([kv.ssdTtlMs, kv.scrubBytesPerSecond]).toEqual([0, 0]);
    }
  });

  test("the SSD is compared with its file system only where that is known", () => {
    const text = `${MINIMAL}ssd_dir = "/mnt/nvme"\nssd_gib = 4\n`;
    const problemsFor = (bytes: number | null) => {
      const result = parseConfig(text, "f", {
        ...NO_FACTS,
        fileSystemBytes: (path) => (path === "/mnt/nvme" ? bytes : 0),
      });
      return result.ok ? [] : result.problems.map(formatProblem);
    };
    expect(problemsFor(null)).toEqual([]);
    expect(problemsFor(4 * GIB)).toEqual([]);
    expect(problemsFor(3 * GIB)).toEqual([
      "f:4:11 kv.ssd_gib: 4GiB is more than the whole file system of ssd_dir; " +
        "use less than 3GiB, or another ssd_dir",
    ]);
  });

  test("rendering any configuration and parsing it gives the same", () => {
    fc.assert(
      fc.property(arbitraryConfig, (config) => {
        expect(configOf(renderConfig(config))).toEqual(config);
      }),
      { seed: 20_260_731, numRuns: 500 },
    );
  });
});

describe("config/hearth.toml", () => {
  const file = new URL("../../config/hearth.toml", import.meta.url).pathname;
  const text = readFileSync(file, "utf8");

  test("is what the schema renders", () => {
    expect(text).toBe(renderSampleConfig());
  });

  test("parses and equals the defaults", () => {
    expect(configOf(text)).toEqual(configOf(MINIMAL));
  });

  test("shows ten keys, one line of comment for each, and names the page of all keys", () => {
    const keys = text.match(/^#?[a-z_]+ = /gm) ?? [];
    expect(keys).toHaveLength(10);
    expect(text.match(/^# .*\n#?[a-z_]+ = /gm)).toHaveLength(10);
    expect(text).toContain("docs/reference/config-agent.md");
  });

  test("parses with every example in it, too", () => {
    const config = configOf(text.replace(/^#([a-z_]+ = )/gm, "$1"));
    expect(config.engine.socketGroup).toBe("hearth");
    expect(config.kv.ssdDir).toBe("/var/cache/hearth");
    expect(config.kv.indexDir).toBe("/var/cache/hearth/index");
    expect(config.control.auditFile).toBe("/var/log/hearth/audit.jsonl");
    expect(config.nats.url).toBe("nats://127.0.0.1:4222");
    expect(config.peers.certFile).toBe("/etc/hearth/peer.pem");
  });
});

describe("the reference page", () => {
  const page = renderConfigReference();

  test("has an entry with type, default and paragraph for every key", () => {
    for (const { name, spec } of SCHEMA_KEYS) {
      const entry = page.split(`### ${name}\n`)[1]?.split("###")[0] ?? "";
      expect(entry).toContain(`| ${spec.kind.name} |`);
      expect(entry).toContain(spec.doc);
      expect(entry).toContain(`${spec.key} = ${JSON.stringify(spec.example)}`);
      expect(spec.doc.length).toBeGreaterThan(40);
      expect(entry).toContain(spec.reload ? "| reload |" : "| restart |");
    }
  });

  test("shows only examples that are allowed", () => {
    for (const { spec } of SCHEMA_KEYS) {
      expect(spec.kind.read(spec.example).ok).toBe(true);
    }
  });
});

describe("hostile input", () => {
  test("no text makes it throw, and every refusal has a place in the file", () => {
    const pieces = fc.constantFrom(
      ..."[]{}=.,#'\"\\\n\r\t _-+0123456789abeknrtuvx\u0000\u2028é".split(""),
      ...['"""', "'''", "[kv]\n", "[[kv]]\n", "ram_gib = 1\n", "kv.", "= {", "1979-05-27", "inf"],
    );
    const text = fc.array(pieces, { maxLength: 60 }).map((parts) => parts.join(""));
    fc.assert(
      fc.property(text, (source) => {
        const result = parseConfig(source, "f", NO_FACTS);
        if (result.ok) return;
        expect(result.problems.length).toBeGreaterThan(0);
        const lines = source.split("\n");
        for (const { line, column, what, instead } of result.problems) {
          expect(line).toBeGreaterThanOrEqual(1);
          expect(line).toBeLessThanOrEqual(lines.length);
          expect(column).toBeGreaterThanOrEqual(1);
          expect(column).toBeLessThanOrEqual(lines[line - 1]!.length + 1);
          expect(what).not.toBe("");
          expect(instead).not.toBe("");
        }
      }),
      { seed: 20_260_731, numRuns: 5000 },
    );
  });

  test("what is too large is refused unread", () => {
    const result = parseConfig(`#${"x".repeat(CONFIG_BYTES_MAX)}`, "f", NO_FACTS);
    expect(result.ok ? [] : result.problems.map(formatProblem)).toEqual([
      "f: is larger than 64 KiB; name a TOML file",
    ]);
  });

  const worst: Readonly<Record<string, string>> = {
    "open brackets": "[".repeat(CONFIG_BYTES_MAX),
    "nested arrays": `a = ${"[".repeat(CONFIG_BYTES_MAX - 10)}`,
    "nested tables": "a={b=".repeat(50_000),
    "one deep key": `${"a.".repeat(CONFIG_BYTES_MAX / 2 - 8)}a = 1`,
    "a deep header over many keys": `[${"a.".repeat(60_000)}a]\n${"b = 1\n".repeat(20_000)}`,
    "the same key again and again": "[kv]\nram_gib = 1\n".concat("policy = 1\n".repeat(20_000)),
    "thousands of unknown keys": Array.from({ length: 20_000 }, (_, i) => `k${i} = 1`).join("\n"),
    "thousands of sections": Array.from({ length: 20_000 }, (_, i) => `[s${i}]`).join("\n"),
    "broken lines behind many sections": Array.from({ length: 1_500 }, (_, i) => `[s${i}]`)
      .concat(Array.from({ length: 30 }, (_, i) => `[t${i}]\nk = 64GiB`))
      .join("\n"),
    "thousands of broken lines": "a 1\n".repeat(60_000),
    "an integer without end": `[kv]\nblocks_max = ${"9".repeat(200_000)}`,
    "quotes only": '"'.repeat(CONFIG_BYTES_MAX),
  };
  for (const [name, text] of Object.entries(worst)) {
    test(`${name}: a bounded answer in bounded time`, () => {
      const started = Bun.nanoseconds();
      const result = parseConfig(text.slice(0, CONFIG_BYTES_MAX), "f", NO_FACTS);
      expect((Bun.nanoseconds() - started) / 1e6).toBeLessThan(2_000);
      expect(result.ok ? 0 : result.problems.length).toBeWithin(1, 130);
      for (const problem of result.ok ? [] : result.problems) {
        expect(formatProblem(problem).length).toBeLessThan(1_000);
      }
    });
  }
});
