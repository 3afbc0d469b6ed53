import { describe, expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { loadNative } from "../../../src/native/index.ts";
import {
  blockPath,
  decodeHeader,
  FINDING_KINDS,
  FileInspector,
  HEADER_BYTES,
  HEADER_FIELDS,
} from "../../../src/store/kvb/index.ts";
import { describeNative } from "../../support/index.ts";
import { GOLDEN_CASES, goldenFile } from "./golden-cases.ts";

const FOLDER = join(import.meta.dir, "golden");
const DOCUMENT = readFileSync(
  join(import.meta.dir, "../../../docs/internals/on-disk-format.md"),
  "utf8",
);

describe("golden files", () => {
  test("each has a case and each case a file", () => {
    const files = readdirSync(FOLDER, { recursive: true, encoding: "utf8" });
    const found = files.filter((path) => path.endsWith(".kvb")).sort();
    expect(GOLDEN_CASES.map(({ path }) => path).sort()).toEqual(found);
  });

  for (const one of GOLDEN_CASES) {
    const bytes = readFileSync(join(FOLDER, one.path));

    test(`${one.what}: written byte for byte`, () => {
      expect(goldenFile(one).toHex()).toBe(bytes.toHex());
    });

    test(`${one.what}: read`, () => {
      const decoded = decodeHeader(bytes.subarray(0, HEADER_BYTES));
      expect(decoded).toMatchObject({ ok: true, header: one.header });
      expect(new FileInspector().inspect(join(FOLDER, one.path), true)).toMatchObject({ ok: true });
    });
  }
});

describeNative("golden names", () => {
  for (const { what, path, header, variant } of GOLDEN_CASES) {
    test(what, () => {
      const key = new Uint8Array(32);
      loadNative().blockKeys(header.digest, header.layer, key);
      expect(blockPath(key, header.layer, variant)).toBe(path);
    });
  }
});

/** Lines of 16 bytes with their offset; `*` for lines like the one before. */
function dump(bytes: Uint8Array): string {
  const lines: string[] = [];
  let before = "";
  for (let at = 0; at < bytes.length; at += 16) {
    const hex = [...bytes.subarray(at, at + 16)].map((byte) => byte.toString(16).padStart(2, "0"));
    const line = hex.join(" ");
    if (line !== before) lines.push(`${at.toString(16).padStart(4, "0")}  ${line}`);
    else if (lines.at(-1) !== "*") lines.push("*");
    before = line;
  }
  return lines.join("\n");
}

describe("the document", () => {
  test("shows the fields where they stand", () => {
    const row = /^\| (\d+) \| (\d+) \| `(\w+)` \|/gm;
    const fields = [...DOCUMENT.matchAll(row)].map(([, at, bytes, name]) => [
      name!,
      { at: Number(at), bytes: Number(bytes) },
    ]);
    expect(fields).toEqual(Object.entries(HEADER_FIELDS));
  });

  test("shows a golden header byte for byte", () => {
    const shown = GOLDEN_CASES[1]!;
    const file = readFileSync(join(FOLDER, shown.path));
    expect(DOCUMENT).toContain(`\n\`\`\`\n${dump(file.subarray(0, HEADER_BYTES + 32))}\n\`\`\`\n`);
    expect(DOCUMENT).toContain(shown.path);
  });

  test("says what each finding means", () => {
    const row = /^\| `(\w+)` \| (.+?) \| (\w+|moved to quarantine) \|$/gm;
    const kinds = [...DOCUMENT.matchAll(row)].map(([, kind, meaning]) => [kind, meaning]);
    const known = Object.entries(FINDING_KINDS).map(([kind, { meaning }]) => [kind, meaning]);
    expect(kinds).toEqual(known);
  });
});
