import { describe, expect, test } from "bun:test";
import {
  closeSync,
  constants,
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  readSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { AuditLog } from "../../src/control/index.ts";
import { yieldToLoop } from "../../src/core/index.ts";
import { createLogger } from "../../src/observability/index.ts";
import { ManualClock, waitFor, withTempDir } from "../support/index.ts";

function opened(path: string, options: { bytesMax?: number; filesMax?: number } = {}) {
  const said: string[] = [];
  const clock = new ManualClock();
  const log = createLogger({
    level: "debug",
    format: "text",
    write: (line) => said.push(line),
    clock,
  });
  const audit = new AuditLog({ path, bytesMax: 2 ** 20, filesMax: 3, log, clock, ...options });
  return { audit, said, clock };
}

function numbersIn(path: string): number[] {
  const lines = readFileSync(path, "utf8").trimEnd().split("\n");
  return lines.map((line) => JSON.parse(line).n);
}

/** Each record is written separately. */
async function writeSlowly(audit: AuditLog, path: string, from: number, to: number) {
  for (let n = from; n < to; n++) {
    audit.write({ n });
    await waitFor(() => existsSync(path) && readFileSync(path, "utf8").includes(`{"n":${n}}\n`));
  }
}

describe("the audit log", () => {
  test("writes one line per record, in order, readable by its owner and group only", async () => {
    await withTempDir(async (folder) => {
      const path = join(folder, "audit.jsonl");
      const { audit } = opened(path);
      for (let n = 0; n < 5_000; n++) audit.write({ n, who: "router\n1", names: [-(2n ** 63n)] });
      await audit[Symbol.asyncDispose]();
      expect(numbersIn(path)).toEqual(Array.from({ length: 5_000 }, (_, n) => n));
      expect(readFileSync(path, "utf8")).toContain('"names":[-9223372036854775808]}\n');
      expect(statSync(path).mode & 0o777 & ~0o640).toBe(0);
      expect(audit.dropped).toBe(0);
    });
  });

  test("appends to an existing file, also after a partial line", async () => {
    await withTempDir(async (folder) => {
      const path = join(folder, "audit.jsonl");
      writeFileSync(path, '{"n":1}\n{"n":');
      const { audit } = opened(path);
      audit.write({ n: 2 });
      await audit[Symbol.asyncDispose]();
      expect(readFileSync(path, "utf8")).toBe('{"n":1}\n{"n":\n{"n":2}\n');
    });
  });

  test("rotates at its maximum length and deletes the oldest file", async () => {
    await withTempDir(async (folder) => {
      const path = join(folder, "audit.jsonl");
      const { audit } = opened(path, { bytesMax: 30, filesMax: 2 });
      await writeSlowly(audit, path, 100, 112);
      await audit[Symbol.asyncDispose]();
      expect(readdirSync(folder).sort()).toEqual(["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]);
      const files = ["audit.jsonl.2", "audit.jsonl.1", "audit.jsonl"];
      const kept = files.map((name) => numbersIn(join(folder, name)));
      expect(kept).toEqual([
        [103, 104, 105],
        [106, 107, 108],
        [109, 110, 111],
      ]);
    });
  });

  test("starts a new file if another process moved or removed it", async () => {
    await withTempDir(async (folder) => {
      const path = join(folder, "audit.jsonl");
      const { audit } = opened(path);
      await writeSlowly(audit, path, 100, 101);
      renameSync(path, `${path}.old`);
      await writeSlowly(audit, path, 101, 102);
      rmSync(path);
      await writeSlowly(audit, path, 102, 103);
      await audit[Symbol.asyncDispose]();
      expect(numbersIn(`${path}.old`)).toEqual([100]);
      expect(numbersIn(path)).toEqual([102]);
    });
  });

  test(
    "a failing disk is reported once; its lines are counted and later lines are " + "written",
    async () => {
      await withTempDir(async (folder) => {
        const path = join(folder, "audit.jsonl");
        // A directory of that name cannot be opened for writing, even by root.
        mkdirSync(path);
        const { audit, said } = opened(path);
        for (let n = 0; n < 5; n++) {
          audit.write({ n });
          await waitFor(() => audit.dropped === n + 1);
        }
        expect(said.filter((line) => line.includes("audit log write failed"))).toHaveLength(1);
        rmSync(path, { recursive: true });
        await writeSlowly(audit, path, 100, 101);
        await audit[Symbol.asyncDispose]();
        expect(numbersIn(path)).toEqual([100]);
        expect(said.at(-1)).toContain("audit log recovered");
      });
    },
  );

  test("reports an unusable path before the first line, until a line is written", async () => {
    await withTempDir(async (folder) => {
      const path = join(folder, "missing", "audit.jsonl");
      const { audit, said } = opened(path);
      expect(audit.failure).toBeNull();
      await waitFor(() => audit.failure !== null);
      expect(audit.failure).toContain("ENOENT");
      expect(said).toHaveLength(1);
      expect(audit.dropped).toBe(0);
      mkdirSync(join(folder, "missing"));
      await writeSlowly(audit, path, 100, 101);
      await waitFor(() => audit.failure === null);
      await audit[Symbol.asyncDispose]();
    });
  });

  test("a full disk loses lines and nothing else", async () => {
    const { audit, said } = opened("/dev/full");
    audit.write({ n: 1 });
    audit.write({ n: 2 });
    await waitFor(() => audit.dropped === 2);
    expect(audit.failure).toContain("ENOSPC");
    await audit[Symbol.asyncDispose]();
    expect(said.join()).toContain("ENOSPC");
  });

  test("a device is never rotated", async () => {
    await withTempDir(async (folder) => {
      const path = join(folder, "null");
      symlinkSync("/dev/null", path);
      const { audit } = opened(path, { bytesMax: 10 });
      for (let n = 0; n < 3; n++) {
        audit.write({ n, words: "longer than that" });
        await yieldToLoop();
      }
      await audit[Symbol.asyncDispose]();
      expect(readdirSync(folder)).toEqual(["null"]);
      expect(audit.dropped).toBe(0);
    });
  });

  test("a hung disk delays closing by seconds at most", async () => {
    await withTempDir(async (folder) => {
      const path = join(folder, "pipe");
      expect(Bun.spawnSync(["mkfifo", path]).exitCode).toBe(0);
      const { audit, said, clock } = opened(path);
      const reader = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
      const read = (bytes: number) => {
        try {
          return readSync(reader, Buffer.alloc(bytes));
        } catch (thrown) {
          if ((thrown as NodeJS.ErrnoException).code === "EAGAIN") return 0;
          throw thrown;
        }
      };
      // More than the buffer of a pipe that is never read.
      for (let n = 0; n < 6; n++) audit.write({ n, words: "x".repeat(100_000) });
      await waitFor(() => read(1) === 1);
      const ended = audit[Symbol.asyncDispose]();
      clock.advance(2_000);
      await ended;
      expect(audit.dropped).toBe(6);
      expect(audit.failure).toBe("the disk does not respond");
      expect(said.join()).toContain("lines=6");
      // Releases the writing thread.
      let bytes = 0;
      await waitFor(() => {
        bytes += read(2 ** 16);
        return bytes > 300_000;
      });
      closeSync(reader);
    });
  });

  test("the queue of waiting lines is bounded", async () => {
    await withTempDir(async (folder) => {
      const path = join(folder, "audit.jsonl");
      const { audit } = opened(path, { bytesMax: 2 ** 30 });
      for (let n = 0; n < 100; n++) audit.write({ n, words: "x".repeat(100_000) });
      expect(audit.dropped).toBeGreaterThan(50);
      expect(audit.failure).toEndWith("bytes are waiting for the disk");
      await audit[Symbol.asyncDispose]();
      expect(numbersIn(path).length).toBe(100 - audit.dropped);
      audit.write({ n: 1 });
      expect(audit.dropped).toBeGreaterThan(50);
    });
  });
});
