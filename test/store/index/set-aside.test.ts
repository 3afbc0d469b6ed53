import { Database } from "bun:sqlite";
import { describe, expect, test } from "bun:test";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { HearthError } from "../../../src/core/index.ts";
import { ManualClock, tempDir } from "../../support/index.ts";
import {
  INDEX_FILE,
  loadAliases,
  loadRows,
  madeIndex,
  OWNER,
  openIndex,
  rowOf,
  rowsOf,
  upTo,
} from "./index-kit.ts";
import { LineChild } from "./line-child.ts";

const folders = tempDir();
let made = 0;
const newFolder = (): string => join(folders, `index-${made++}`);

async function madeFolder(): Promise<string> {
  const folder = newFolder();
  await madeIndex(folder, 500, 20);
  return folder;
}

function changeWith(folder: string, sql: string): void {
  const db = new Database(join(folder, INDEX_FILE));
  db.run(sql);
  db.close(true);
}

/** Why it was set aside: the new index is empty, works, and the old file is kept. */
async function whySetAside(folder: string, options: object = {}): Promise<string> {
  await using index = await openIndex(folder, options);
  const { setAside } = index.state;
  expect(setAside).not.toBeNull();
  expect(existsSync(setAside!.path)).toBe(true);
  expect(index.previous).toEqual({ incarnation: null, flushedSequence: 0, clean: false });
  expect(await loadRows(index)).toEqual(new Map());
  expect(await loadAliases(index)).toEqual([]);
  index.put(rowOf(1));
  expect(await index.flush()).toBe(true);
  return setAside!.why;
}

const asideIn = (folder: string): string[] =>
  readdirSync(folder).filter((name) => name.includes("broken"));

describe("set aside, and a new one made:", () => {
  test("garbage", async () => {
    const folder = newFolder();
    mkdirSync(folder);
    writeFileSync(join(folder, INDEX_FILE), crypto.getRandomValues(new Uint8Array(20_000)));
    expect(await whySetAside(folder)).toContain("not a database");
  });

  test("a folder of that name", async () => {
    const folder = newFolder();
    mkdirSync(join(folder, INDEX_FILE, "x"), { recursive: true });
    expect(await whySetAside(folder)).toBe("not a regular file");
  });

  test("another program's database", async () => {
    const folder = newFolder();
    mkdirSync(folder);
    changeWith(folder, "CREATE TABLE mine (a)");
    expect(await whySetAside(folder)).toContain("database of another program");
  });

  test("a truncated one", async () => {
    for (const bytes of [100, 4096, 5000, 40_960]) {
      const folder = await madeFolder();
      truncateSync(join(folder, INDEX_FILE), bytes);
      expect(await whySetAside(folder)).not.toBe("");
    }
  });

  test("an empty file is as good as none", async () => {
    const folder = await madeFolder();
    truncateSync(join(folder, INDEX_FILE), 0);
    await using index = await openIndex(folder);
    expect(index.state.setAside).toBeNull();
    expect(index.previous.incarnation).toBeNull();
    expect(await loadRows(index)).toEqual(new Map());
  });

  test("one of a newer Hearth", async () => {
    const folder = await madeFolder();
    changeWith(folder, "PRAGMA user_version = 9000");
    expect(await whySetAside(folder)).toContain("schema version 9000");
  });

  test("one with a table changed, or a trigger in it", async () => {
    const changes = [
      "ALTER TABLE blocks ADD COLUMN more INTEGER",
      "CREATE TRIGGER t AFTER INSERT ON blocks BEGIN DELETE FROM blocks; END",
      "CREATE TABLE more (a)",
    ];
    for (const change of changes) {
      const folder = await madeFolder();
      changeWith(folder, change);
      expect(await whySetAside(folder)).toContain("schema differs from ours");
    }
  });

  test("one of another SSD folder", async () => {
    const folder = await madeFolder();
    const owner = { ...OWNER, store: "ssd-b" };
    expect(await whySetAside(folder, { owner })).toContain("another SSD folder");
  });

  test("one that another program keeps locked", async () => {
    const folder = await madeFolder();
    await using child = LineChild.ofFile("foreign.ts", join(folder, INDEX_FILE));
    expect(await child.line()).toBe("locked");
    expect(await whySetAside(folder, { busyMs: 20 })).toContain("locked by another program");
  });

  const unsound: Record<string, string> = {
    "a row that says something else": "UPDATE blocks SET bytes = bytes + 1 WHERE id = 7",
    "a row of another namespace":
      "UPDATE blocks SET namespace_id = 1 + namespace_id % 3 WHERE id = 7",
    "a parent that is not the parent": "UPDATE blocks SET parent = digest WHERE id = 7",
    "a lost row": "DELETE FROM blocks WHERE id = 7",
    "a row too many": `INSERT INTO blocks SELECT 9999, digest, layer + 1, namespace_id, parent,
      bytes, checksum, variant, last_seen, uses, seal FROM blocks WHERE id = 7`,
    "another key for a namespace": "UPDATE namespaces SET key = zeroblob(32) WHERE id = 2",
    "a namespace that is gone": "DELETE FROM namespaces WHERE id = 2",
    "an alias of another block": `UPDATE aliases SET digest = (SELECT digest FROM blocks WHERE
      id = 400) WHERE rowid = 1`.replace(
      "rowid = 1",
      "alias IN (SELECT alias FROM aliases LIMIT 1)",
    ),
    "another alias": "UPDATE aliases SET alias = zeroblob(8) WHERE length(alias) = 8",
    "a lost alias": "DELETE FROM aliases WHERE alias IN (SELECT alias FROM aliases LIMIT 1)",
    "another run": "UPDATE run SET flushed_sequence = flushed_sequence + 1",
    "a run that ended otherwise": "UPDATE run SET clean = 1 - clean",
    "no run": "DELETE FROM run",
  };
  for (const [what, sql] of Object.entries(unsound)) {
    test(what, async () => {
      const folder = await madeFolder();
      changeWith(folder, sql);
      expect(await whySetAside(folder)).toMatch(/damaged|missing|unknown|than recorded|not match/);
    });
  }

  test("the newest three are kept", async () => {
    const folder = newFolder();
    mkdirSync(folder);
    const clock = new ManualClock();
    for (let round = 0; round < 5; round++) {
      rmSync(join(folder, INDEX_FILE), { force: true });
      writeFileSync(join(folder, INDEX_FILE), `no database, round ${round}`);
      await using index = await openIndex(folder, { clock });
      expect(index.state.setAside).not.toBeNull();
      // Twice within one second.
      clock.advance(round === 1 ? 0 : 1_000);
      await index[Symbol.asyncDispose]();
    }
    const kept = asideIn(folder);
    expect(kept).toHaveLength(3);
    expect(kept.sort().map((name) => readFileSync(join(folder, name), "utf8"))).toEqual(
      [2, 3, 4].map((round) => `no database, round ${round}`),
    );
  });
});

describe("refused with a message, and left unchanged:", () => {
  test("the index of another worker, or of another machine", async () => {
    const folder = await madeFolder();
    const others = [
      { ...OWNER, worker: "worker-b" },
      { ...OWNER, machine: "machine-b" },
    ];
    for (const owner of others) {
      const refused = await openIndex(folder, { owner }).catch((thrown) => thrown);
      expect(refused).toBeInstanceOf(HearthError);
      expect(refused.code).toBe("INDEX_FOREIGN");
      expect(refused.text).toContain('worker "worker-a" on machine "machine-a"');
      expect(refused.text).toContain("index_dir");
    }
    await using index = await openIndex(folder);
    expect(await loadRows(index)).toEqual(rowsOf(upTo(500)));
    expect(asideIn(folder)).toEqual([]);
  });

  test("an index that another agent uses, until that one is gone", async () => {
    const folder = await madeFolder();
    {
      await using holder = LineChild.ofFile("holder.ts", folder);
      expect(await holder.line()).toBe("open as it was");
      const refused = await openIndex(folder).catch((thrown) => thrown);
      expect(refused.code).toBe("INDEX_IN_USE");
      expect(refused.text).toContain(`another agent uses the index in ${folder}`);
      await using second = LineChild.ofFile("holder.ts", folder);
      expect(await second.line()).toStartWith("INDEX_IN_USE another agent");
    }
    await using index = await openIndex(folder);
    expect(await loadRows(index)).toEqual(rowsOf(upTo(500)));
    expect(asideIn(folder)).toEqual([]);
  });

  test("an index that is open in this process", async () => {
    const folder = await madeFolder();
    await using first = await openIndex(folder);
    expect(openIndex(folder)).rejects.toMatchObject({ code: "INDEX_IN_USE" });
    expect(await first.flush()).toBe(true);
  });
});
