import { expect, test } from "bun:test";
import { chmodSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { readNamespaceKeys } from "../../src/app/index.ts";
import { namespaceSecret } from "../../src/identity/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { describeNative, withTempDir } from "../support/index.ts";

function write(folder: string, name: string, text: string, mode = 0o600): void {
  const path = join(folder, name);
  writeFileSync(path, text);
  chmodSync(path, mode);
}

describeNative("the folder of namespace keys", () => {
  const native = loadNative();
  const secret = (text: string) => namespaceSecret(native, new TextEncoder().encode(text));

  test("keys are read by identifier, and none without a folder", async () => {
    expect(readNamespaceKeys(null, native).size).toBe(0);
    await withTempDir((dir) => {
      write(dir, "a.key", "a secret of tenant a\n");
      write(dir, "b", "\u00ff\u0100 a secret of b");
      write(dir, ".hidden", "x", 0o644);
      mkdirSync(join(dir, "folder"));
      const expected = [secret("a secret of tenant a"), secret("\u00ff\u0100 a secret of b")];
      const keys = new Map(expected.map(({ id, key }) => [id, key]));
      expect(readNamespaceKeys(dir, native)).toEqual(keys);
    });
  });

  const refusals: [string, string, number, string][] = [
    ["that others may read", "a secret of 16 bytes", 0o640, 'has mode 640: run "chmod 600'],
    ["that is too short", "short", 0o600, "has 5 bytes, not 16 to 4096"],
    ["that is too long", "x".repeat(5_000), 0o600, "has 5000 bytes, not 16 to 4096"],
  ];
  for (const [what, text, mode, why] of refusals) {
    test(`a file ${what} refuses the start`, async () => {
      await withTempDir((dir) => {
        write(dir, "key", text, mode);
        expect(() => readNamespaceKeys(dir, native)).toThrow(
          expect.objectContaining({ code: "CONFIG_INVALID", text: expect.stringContaining(why) }),
        );
      });
    });
  }

  test("a missing key folder refuses the start", () => {
    expect(() => readNamespaceKeys("/nonexistent/keys", native)).toThrow("cannot be read");
  });
});
