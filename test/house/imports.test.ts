import { describe, expect, test } from "bun:test";
import { FOLDERS, PACKAGE_HOMES } from "./import-table.ts";
import { checkCycles, checkFolders, checkImports, checkSeam, importsOf } from "./imports.ts";
import { readTree, type Tree } from "./tree.ts";

const tree = readTree();

describe("this checkout", () => {
  test("imports doors only, along the table, and packages at home only", () => {
    expect(checkImports(tree)).toEqual([]);
  });

  test("has only known folders, each with a door", () => {
    expect(checkFolders(tree)).toEqual([]);
  });

  test("has no circle of imports", () => {
    expect(checkCycles(tree)).toEqual([]);
  });

  test("takes time and chance from the seam", () => {
    expect(checkSeam(tree)).toEqual([]);
  });

  test("lists the packages that ship, and no others", () => {
    const manifest = JSON.parse(tree.get("package.json") ?? "{}");
    const shipped = Object.keys(manifest.dependencies);
    expect(
      Object.keys(PACKAGE_HOMES)
        .filter((name) => !name.startsWith("bun:"))
        .sort(),
    ).toEqual(shipped.sort());
  });

  test("was really read", () => {
    expect(tree.has("src/core/clock.ts")).toBe(true);
    expect(importsOf(tree.get("src/core/clock.ts")!).map((found) => found.specifier)).toEqual([
      "node:fs",
      "node:os",
      "./errors.ts",
    ]);
  });
});

describe("the table", () => {
  test("runs downwards only", () => {
    const names = Object.keys(FOLDERS);
    for (const [index, name] of names.entries()) {
      const below = names.slice(0, index);
      expect(FOLDERS[name]!.filter((other) => !below.includes(other))).toEqual([]);
    }
  });
});

describe("the rules find", () => {
  const DOORS = {
    "src/store/blocks/index.ts": "",
    "src/store/policy/index.ts": "",
    "test/support/index.ts": "",
  };
  const plant = (files: Record<string, string>): Tree => new Map(Object.entries(files));

  test.each([
    ["src/store/a.ts", `import { x } from "./blocks/table.ts";`, "reaches past a door"],
    ["src/store/a.ts", `import { x } from "./policy/lru.ts";`, "reaches past a door"],
    ["src/engine/a.ts", `import { x } from "../store/policy/index.ts";`, "reaches past a door"],
    ["test/x/a.test.ts", `import { x } from "../../src/store/arena.ts";`, "reaches past a door"],
    ["src/core/a.ts", `import { x } from "../native/index.ts";`, "may not import from src/native"],
    ["src/core/a.ts", `import type { X } from "../native/index.ts";`, "may not import"],
    ["src/api/a.ts", `export * from "../cli/index.ts";`, "may not import from src/cli"],
    ["src/api/a.ts", `const x = await import("../cli/index.ts");`, "may not import from src/cli"],
    ["src/store/a.ts", `import { dlopen } from "bun:ffi";`, "bun:ffi, which is at home in"],
    ["src/store/a.ts", `import { z } from "zod";`, "has no home"],
    ["src/core/a.ts", `import { x } from "../../test/support/index.ts";`, "outside src/"],
    ["src/cli/a.ts", `import "../main.ts";`, "imports the entry point"],
  ])("%s: %s", (path, source, problem) => {
    const problems = checkImports(plant({ ...DOORS, [path]: source }));
    expect(problems).toHaveLength(1);
    expect(problems[0]).toContain(problem);
  });

  test.each([
    ["src/store/a.ts", `import { x } from "./blocks/index.ts";`],
    ["src/engine/a.ts", `import { x } from "../store/blocks/index.ts";`],
    ["src/store/a.ts", `import { lru } from "./policy/index.ts";`],
    ["src/config/a.ts", `import { kv } from "./sections/kv.ts";`],
    ["src/store/policy/a.ts", `import type { X } from "../block-store.ts";`],
    ["src/native/a.ts", `import { dlopen } from "bun:ffi";`],
    ["src/native/a.ts", `import lib from "../../dist/native/linux-x64/libhearth.so";`],
    ["src/store/a.ts", `// import { dlopen } from "bun:ffi";\nconst s = 'import "zod"';`],
    ["test/tiers/a.test.ts", `import { lru } from "../../src/store/policy/index.ts";`],
  ])("nothing in %s: %s", (path, source) => {
    expect(checkImports(plant({ ...DOORS, [path]: source }))).toEqual([]);
  });

  test("unknown folders, missing doors and stray files", () => {
    const problems = checkFolders(
      plant({ "src/utils/index.ts": "", "src/store/arena.ts": "", "src/helpers.ts": "" }),
    );
    expect(problems.sort()).toEqual([
      "src/helpers.ts lies beside the folders of src/",
      "src/store has no index.ts",
      "src/utils is not in the table",
    ]);
  });

  test("circles, but not those of types", () => {
    const circle = {
      "src/core/a.ts": `import { b } from "./b.ts";`,
      "src/core/b.ts": `export { c } from "./c.ts";`,
      "src/core/c.ts": `import { a } from "./a.ts";`,
    };
    expect(checkCycles(plant(circle))).toEqual([
      "src/core/a.ts -> src/core/b.ts -> src/core/c.ts -> src/core/a.ts",
    ]);
    const types = { ...circle, "src/core/c.ts": `import type { A } from "./a.ts";` };
    expect(checkCycles(plant(types))).toEqual([]);
  });

  test.each([
    "const t = Date.now();",
    "const t = new Date();",
    "const r = Math.random();",
    "const t = performance.now();",
    "setTimeout(run, 5);",
    "globalThis.setInterval(run, 5);",
    "await Bun.sleep(5);",
    "process.exit(1);",
  ])("%s", (source) => {
    expect(checkSeam(plant({ "src/store/a.ts": `// Why not.\n${source}` }))).toHaveLength(1);
    expect(checkSeam(plant({ "src/store/a.ts": `// ${source}` }))).toEqual([]);
  });

  test("no clock in what only looks like one", () => {
    const fine = 'const at = new Date(ms); const text = "Date.now()"; // setTimeout';
    expect(checkSeam(plant({ "src/store/a.ts": fine }))).toEqual([]);
    expect(checkSeam(plant({ "src/cli/a.ts": "process.exit(2);" }))).toEqual([]);
    expect(checkSeam(plant({ "src/core/a.ts": "performance.now();" }))).toEqual([]);
  });
});
