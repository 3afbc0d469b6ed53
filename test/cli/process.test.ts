import { describe, expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { tempDir, waitFor } from "../support/index.ts";

const MAIN = join(import.meta.dir, "../../src/main.ts");
const WAIT = join(import.meta.dir, "fixtures/wait.ts");

function shell(command: string) {
  const env = { ...process.env, BUN: process.execPath, MAIN };
  return Bun.spawn(["bash", "-o", "pipefail", "-c", command], {
    env,
    stdout: "pipe",
    stderr: "pipe",
  });
}

async function ended(command: string) {
  const child = shell(command);
  const [out, err] = await Promise.all([child.stdout.text(), child.stderr.text()]);
  return { code: await child.exited, out, err };
}

describe("the program", () => {
  test("gives its exit code and keeps results and messages apart", async () => {
    const fine = await ended('"$BUN" "$MAIN" --version');
    expect(fine).toMatchObject({ code: 0, err: "" });
    expect(fine.out).toStartWith("hearth ");
    const refused = await ended('"$BUN" "$MAIN" check');
    expect(refused).toMatchObject({ code: 2, out: "" });
    expect(refused.err).toStartWith("hearth check: FILE is missing\n");
  });

  test("writes everything to a reader that is slow, and nothing to one that left", async () => {
    const whole = await ended('"$BUN" "$MAIN" reference config');
    const slow = await ended('"$BUN" "$MAIN" reference config | (sleep 0.2; cat)');
    expect(slow).toMatchObject({ code: 0, out: whole.out });
    const left = await ended('"$BUN" "$MAIN" reference config | true');
    expect(left).toMatchObject({ code: 0, err: "" });
  });

  test("fails where its results cannot be written", async () => {
    const full = await ended('"$BUN" "$MAIN" reference errors > /dev/full');
    expect(full.code).toBe(1);
    expect(full.err).toContain("ENOSPC");
  });
});

/** Reads until `text` has come. */
async function until(stream: ReadableStream<Uint8Array>, text: string): Promise<void> {
  const decoder = new TextDecoder();
  let seen = "";
  for await (const chunk of stream.values({ preventCancel: true })) {
    seen += decoder.decode(chunk, { stream: true });
    if (seen.includes(text)) return;
  }
  throw new Error(`the stream ended without ${text}: ${seen}`);
}

describe("a signal", () => {
  test.each(["SIGINT", "SIGTERM", "SIGHUP"] as const)(
    "%s lets a command clean up",
    async (name) => {
      const child = Bun.spawn([process.execPath, WAIT], { stdout: "pipe", stderr: "pipe" });
      await until(child.stdout, "waiting");
      child.kill(name);
      expect(await child.exited).toBe(130);
      expect(await child.stderr.text()).toBe(`hearth wait: interrupted by ${name}\n`);
    },
  );

  test("the second one ends a cleanup that takes too long", async () => {
    const child = Bun.spawn([process.execPath, WAIT], {
      env: { ...process.env, CLEAN_FOR_EVER: "1" },
      stdout: "pipe",
      stderr: "pipe",
    });
    await until(child.stdout, "waiting");
    child.kill("SIGINT");
    await until(child.stdout, "cleaning");
    // Signals close behind each other are one wish: the terminal's and a wrapper's.
    child.kill("SIGINT");
    child.kill("SIGTERM");
    await Bun.sleep(20);
    expect(child.exitCode).toBeNull();
    await waitFor(() => {
      child.kill("SIGINT");
      return child.exitCode !== null;
    });
    expect(child.exitCode).toBe(130);
  });
});

test("what --version needs is the command line and the core, nothing else", async () => {
  const transpiler = new Bun.Transpiler({ loader: "ts" });
  const seen = new Set<string>();
  const visit = async (path: string): Promise<void> => {
    if (seen.has(path)) return;
    seen.add(path);
    for (const { path: other, kind } of transpiler.scanImports(await Bun.file(path).text())) {
      if (kind === "import-statement" && other.startsWith(".")) {
        await visit(join(dirname(path), other));
      }
    }
  };
  await visit(MAIN);
  const source = join(MAIN, "..");
  const folders = [...seen].map((path) => path.slice(source.length + 1).split("/")[0]);
  expect(new Set(folders)).toEqual(new Set(["main.ts", "cli", "core"]));
  expect([...seen].filter((path) => path.includes("/commands/"))).toEqual([]);
});

test.each([
  ["token_file", "missing", null, "cannot be read"],
  ["nkey_file", "nk", "no seed", "does not contain a user seed"],
  ["ca_file", "missing.pem", null, "cannot be read"],
])(
  "a %s that will not do for NATS is refused by check and by the start",
  async (key, name, text, why) => {
    const folder = tempDir();
    const path = join(folder, name);
    if (text !== null) writeFileSync(path, text);
    const file = join(folder, "hearth.toml");
    const socket = join(folder, "engine.sock");
    const nats = `[nats]\nurl = "nats://127.0.0.1:1"\n${key} = "${path}"`;
    writeFileSync(file, `[kv]\nram_gib = 0.0625\n[engine]\nsocket = "${socket}"\n${nats}\n`);
    for (const words of [
      ["check", file],
      ["agent", "--config", file],
    ]) {
      const child = Bun.spawn([process.execPath, MAIN, ...words], {
        stdout: "pipe",
        stderr: "pipe",
        timeout: 20_000,
      });
      const said = `${await child.stdout.text()}${await child.stderr.text()}`;
      expect(await child.exited).toBe(3);
      expect(said).toContain(`${path} ${why}`);
    }
  },
  60_000,
);
