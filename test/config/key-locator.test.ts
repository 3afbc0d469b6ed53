import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { parseText } from "../../src/config/index.ts";

type Tree = { [key: string]: Tree | string | number };

const bareKey = fc.stringMatching(/^[A-Za-z0-9_-]{1,6}$/);
const anyKey = fc.oneof(bareKey, fc.string({ unit: "grapheme-ascii", minLength: 1, maxLength: 5 }));

/** A key as TOML may write it. */
function writtenKey(key: string, style: number): string {
  if (/^[A-Za-z0-9_-]+$/.test(key) && style % 3 === 0) return key;
  if (style % 3 === 1 && /^[ -&(-~]+$/.test(key)) return `'${key}'`;
  const escaped = [...key].map((c) => `\\u${c.codePointAt(0)!.toString(16).padStart(4, "0")}`);
  return style % 2 === 0 ? JSON.stringify(key) : `"${escaped.join("")}"`;
}

const NOISE = [
  "# [x] = 'y",
  "",
  "   ",
  '"text" = """\n[a]\nb = 1 # \\""" \n"""',
  "'raw' = '''\n[kv]\n\"\n''''",
  "'list' = [ # c\n 1, [2, 3], { q = ']' }, \"]\",\n]",
  "'table' = { z = { y = [\"}\"] }, 'w' = 1 }",
  "'plain' = 1979-05-27 07:32:00 # = [",
];

/** A document of two-level tables with a number for each key, and what path each number is for. */
const documentOf = fc
  .tuple(
    fc.uniqueArray(fc.tuple(anyKey, fc.uniqueArray(anyKey, { maxLength: 4 })), {
      maxLength: 4,
      selector: ([name]) => name,
    }),
    fc.array(fc.nat(1000), { minLength: 40, maxLength: 40 }),
  )
  .map(([tables, styles]) => {
    let text = "";
    let count = 0;
    const paths: string[][] = [];
    const style = () => styles[count % styles.length]! + count++;
    for (const [name, keys] of tables) {
      const noise = NOISE[style() % NOISE.length]!;
      const inline = style() % 3 === 0;
      const pair = (key: string) => {
        paths.push([name, key]);
        return `${writtenKey(key, style())}${" ".repeat(style() % 3)}=\t${paths.length - 1}`;
      };
      if (inline) {
        // An inline table would land in the table before it, so these come first.
        text = `${writtenKey(name, style())} = {${keys.map(pair).join(" , ")}}\n${text}`;
      } else {
        const lines = keys.map((key) => " ".repeat(style() % 4) + pair(key));
        text += `[ ${writtenKey(name, style())} ] # ]\n${lines.join("\n")}\n`;
        if (!keys.some((key) => noise.includes(key))) text += `${noise}\n`;
      }
    }
    return { text, paths };
  });

describe("positions of keys", () => {
  test("every key of a valid document is found at its value", () => {
    let seen = 0;
    fc.assert(
      fc.property(documentOf, ({ text, paths }) => {
        const { document, problems } = parseText(text, "f");
        expect(problems).toEqual([]);
        const root = document!.root as Tree;
        for (const [index, path] of paths.entries()) {
          expect((root[path[0]!] as Tree)[path[1]!]).toBe(index);
          const place = document!.locate(path)!;
          expect(text.slice(place.value)).toMatch(new RegExp(`^${index}(?![0-9])`));
          const key = text.slice(place.key, place.value).replace(/[ \t]*=[ \t]*$/, "");
          expect(Bun.TOML.parse(`${key} = 1`)).toEqual({ [path[1]!]: 1 });
          seen++;
        }
      }),
      { seed: 20_260_731, numRuns: 1000 },
    );
    expect(seen).toBeGreaterThan(1000);
  });

  test("every text gives a document or a problem with a position inside the text", () => {
    const piece = fc.constantFrom(..."[]{}=.,#'\"\\\n\r ab1".split(""));
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 40 }), (parts) => {
        const text = parts.join("");
        const { document, problems } = parseText(text, "f");
        expect(document !== null || problems.length > 0).toBe(true);
        const lines = text.split("\n");
        for (const { line, column } of problems) {
          expect(line).toBeWithin(1, lines.length + 1);
          expect(column).toBeWithin(1, lines[line - 1]!.length + 2);
        }
      }),
      { seed: 20_260_731, numRuns: 5000 },
    );
  });

  test("the first of several places counts, and tables on the way have places too", () => {
    const text = "a.b.c = 1\n[t]\nk = 1\n[[l]]\nx = 1\n[[l]]\nx = 2\n";
    const document = parseText(text, "f").document!;
    expect(document.locate(["a"])!.key).toBe(text.indexOf("a"));
    expect(document.locate(["a", "b"])!.key).toBe(text.indexOf("b"));
    expect(document.locate(["a", "b", "c"])!.value).toBe(text.indexOf("1"));
    expect(document.locate(["t", "k"])!.key).toBe(text.indexOf("k"));
    expect(document.locate(["l"])!.key).toBe(text.indexOf("l"));
    expect(document.locate(["l", "x"])!.key).toBe(text.indexOf("x"));
    expect(document.locate(["b"])).toBeNull();
  });
});
