import { expect, test } from "bun:test";
import fc from "fast-check";
import { parseServers } from "../../src/bus/index.ts";
import { parseConfig } from "../../src/config/index.ts";

const FACTS = { hostname: "host", memoryBytes: 2 ** 40 };

const url = fc
  .tuple(
    fc.constantFrom("nats://", "tls://", "ws://", "wss://", "http://", ""),
    fc.constantFrom("", "u:p@", "v:p@", "t@", "%zz@"),
    fc.oneof(
      fc.constantFrom(
        "h",
        "a.b",
        "127.0.0.1",
        "1.2.3.999",
        "999999999999",
        "[::1]",
        "[1:2]",
        "é",
        "a_b",
      ),
      fc.stringMatching(/^[!-~]{1,8}$/),
    ),
    fc.constantFrom("", ":4222", ":0", ":65535", ":65536", ":99999", ":"),
    fc.constantFrom("", "/", "/p?q=1", "?q", "#f"),
  )
  .map((parts) => parts.join(""));

test("a NATS URL that the check accepts is one that the connection can read", () => {
  let accepted = 0;
  fc.assert(
    fc.property(fc.array(url, { minLength: 1, maxLength: 3 }), (urls) => {
      const text = urls.join(",");
      const source = `[kv]\nram_gib = 8\n[nats]\nurl = ${JSON.stringify(text)}\n`;
      const result = parseConfig(source, "hearth.toml", FACTS);
      if (!result.ok) return;
      accepted++;
      expect(() => parseServers(result.config.nats.url!)).not.toThrow();
    }),
    { numRuns: 3_000 },
  );
  expect(accepted).toBeGreaterThan(100);
});

test("what only the connection refused has a place in the file now", () => {
  const source = '[kv]\nram_gib = 8\n[nats]\nurl = "nats://u:s3cr3t@h:99999"\n';
  const result = parseConfig(source, "hearth.toml", FACTS);
  expect(result).toMatchObject({
    ok: false,
    problems: [{ file: "hearth.toml", line: 4, column: 7, key: "nats.url" }],
  });
  expect(JSON.stringify(result)).not.toContain("s3cr3t");
});
