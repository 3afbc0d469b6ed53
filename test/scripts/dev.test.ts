import { describe, expect, test } from "bun:test";
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  readFileSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { ROOT } from "../../scripts/lib/paths.ts";
import { waitFor, withTempDir } from "../support/index.ts";

const manifest = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8"));
const version: string = manifest.engines.bun;

/**
 * Stand-ins for the outside programs that `./dev` calls; each call leaves a line.
 */
const NPM = `#!/bin/sh
echo "npm $*" >>"$CALLS"
[ -z "\${NPM_BREAKS:-}" ] || { echo "getaddrinfo failed"; exit 1; }
while [ "$1" != --prefix ]; do shift; done
for platform in linux-x64 linux-aarch64 darwin-x64 darwin-aarch64; do
  for libc in "" -musl; do
    mkdir -p "$2/node_modules/@oven/bun-$platform$libc/bin"
    cp "$FAKE_BUN" "$2/node_modules/@oven/bun-$platform$libc/bin/bun"
  done
done
sleep 0.2
`;
const BUN = `#!/bin/sh
[ "$1" = --version ] && { echo ${version}; exit 0; }
echo "bun $* in $PWD" >>"$CALLS"
[ "$1" != install ] || mkdir -p node_modules
[ "$1 $3" != "run sleepy" ] || exec sleep 30
`;

interface Sandbox {
  readonly checkout: string;
  readonly env: Record<string, string>;
  calls(): string[];
  dev(args: string[], options?: { env?: Record<string, string>; cwd?: string }): Finished;
}

interface Finished {
  readonly code: number;
  readonly out: string;
  readonly err: string;
}

function script(path: string, text: string): void {
  writeFileSync(path, text);
  chmodSync(path, 0o755);
}

/** A checkout in a folder with spaces, with nothing on the PATH but a shell's tools and our npm. */
async function withSandbox(use: (sandbox: Sandbox) => void | Promise<void>): Promise<void> {
  await withTempDir(async (folder) => {
    const checkout = join(folder, "a checkout");
    const tools = join(folder, "tools");
    mkdirSync(join(checkout, "scripts"), { recursive: true });
    mkdirSync(tools);
    for (const name of ["dev", "package.json", "bun.lock", "bunfig.toml"]) {
      copyFileSync(join(ROOT, name), join(checkout, name));
    }
    const needed = [
      "cat",
      "cksum",
      "cp",
      "dirname",
      "grep",
      "ldd",
      "mkdir",
      "mv",
      "readlink",
      "rm",
    ];
    for (const name of [...needed, "sed", "sh", "sleep", "tail", "uname"]) {
      const found = Bun.which(name);
      if (found !== null) symlinkSync(found, join(tools, name));
    }
    script(join(tools, "npm"), NPM);
    script(join(folder, "fake-bun"), BUN);
    const calls = join(folder, "calls");
    const env = { PATH: tools, CALLS: calls, FAKE_BUN: join(folder, "fake-bun") };
    await use({
      checkout,
      env,
      calls: () => (existsSync(calls) ? readFileSync(calls, "utf8").trim().split("\n") : []),
      dev(args, options = {}) {
        const child = Bun.spawnSync([join(checkout, "dev"), ...args], {
          cwd: options.cwd ?? folder,
          env: { ...env, ...options.env },
        });
        const [out, err] = [child.stdout.toString(), child.stderr.toString()];
        return { code: child.exitCode, out, err };
      },
    });
  });
}

describe("./dev", () => {
  test("alone prints help with every script of package.json, and brings nothing", async () => {
    await withSandbox(({ dev, calls }) => {
      const { code, out } = dev([]);
      expect(code).toBe(0);
      const listed = out.split("arguments:\n")[1]!.trim().split(/\s+/);
      expect(listed).toEqual(Object.keys(manifest.scripts));
      expect(calls()).toEqual([]);
    });
  });

  test("brings the pinned Bun and the packages once, then runs the script", async () => {
    await withSandbox(({ dev, calls, checkout }) => {
      expect(dev(["test", "a b", "--flag"])).toMatchObject({ code: 0, out: "" });
      const [npm, install, run] = calls();
      expect(npm).toStartWith("npm install --ignore-scripts ");
      expect(npm).toEndWith(` bun@${version}`);
      expect(install).toBe(`bun install --frozen-lockfile --ignore-scripts in ${checkout}`);
      expect(run).toBe(`bun run --silent test a b --flag in ${checkout}`);

      expect(dev(["test"])).toMatchObject({ code: 0, err: "" });
      expect(calls().slice(3)).toEqual([`bun run --silent test in ${checkout}`]);
    });
  });

  test("installs again when package.json or the lockfile changed", async () => {
    await withSandbox(({ dev, calls, checkout }) => {
      dev(["test"]);
      writeFileSync(join(checkout, "bun.lock"), "changed");
      dev(["test"]);
      expect(calls().filter((line) => line.startsWith("bun install"))).toHaveLength(2);
      expect(calls().filter((line) => line.startsWith("npm"))).toHaveLength(1);
    });
  });

  test("builds the library before scripts that do not do so themselves", async () => {
    await withSandbox(({ dev, calls, checkout }) => {
      dev(["test:fuzz", "--seconds", "1"]);
      expect(calls().slice(2)).toEqual([
        `bun ${checkout}/scripts/native.ts --quiet in ${checkout}`,
        `bun run --silent test:fuzz --seconds 1 in ${checkout}`,
      ]);
    });
  });

  test("stays where the caller is for `hearth`, and keeps that folder's settings out", async () => {
    await withSandbox(({ dev, calls, checkout }) => {
      mkdirSync(join(checkout, "elsewhere"));
      dev(["hearth", "replay", "x.jsonl"], { cwd: join(checkout, "elsewhere") });
      expect(calls().at(-1)).toBe(
        `bun --config=${checkout}/bunfig.toml --no-env-file ${checkout}/src/main.ts ` +
          `replay x.jsonl in ${checkout}/elsewhere`,
      );
    });
  });

  test("uses a Bun of the pinned version from the PATH, and no other", async () => {
    await withSandbox(({ dev, calls, env }) => {
      const own = join(env.PATH!, "bun");
      script(own, BUN.replace(version, "0.0.1"));
      expect(dev(["bun", "x"]).code).toBe(0);
      expect(calls().filter((line) => line.startsWith("npm"))).toHaveLength(1);
    });
    await withSandbox(({ dev, calls, env }) => {
      script(join(env.PATH!, "bun"), BUN);
      expect(dev(["bun", "x"]).code).toBe(0);
      expect(calls().filter((line) => line.startsWith("npm"))).toEqual([]);
    });
  });

  test("works through a link from another folder", async () => {
    await withSandbox(({ checkout, env, calls }) => {
      const link = join(env.PATH!, "hearth-dev");
      symlinkSync(join(checkout, "dev"), link);
      expect(Bun.spawnSync([link, "test"], { cwd: "/", env }).exitCode).toBe(0);
      expect(calls().at(-1)).toBe(`bun run --silent test in ${checkout}`);
    });
  });

  test("./dev keeps downloads in the checkout if HOME is not set", async () => {
    await withSandbox(({ dev, env, checkout, calls }) => {
      const report = 'echo "cache $npm_config_cache" >>"$CALLS"\n';
      script(join(env.PATH!, "npm"), NPM.replace("while", `${report}while`));
      dev(["test"]);
      expect(calls()).toContain(`cache ${checkout}/.toolchain/npm-cache`);
    });
  });
});

describe("./dev says what to do", () => {
  test("about a script that does not exist", async () => {
    await withSandbox(({ dev }) => {
      const { code, err } = dev(["tset"]);
      expect(code).toBe(1);
      expect(err).toContain('there is no script "tset"');
    });
  });

  test("without npm", async () => {
    await withSandbox(({ dev, env }) => {
      Bun.spawnSync(["rm", join(env.PATH!, "npm")]);
      const { code, err } = dev(["test"]);
      expect(code).toBe(1);
      expect(err).toContain("install Node.js with npm");
    });
  });

  test("without a network, with npm's own words, and leaves no lock", async () => {
    await withSandbox(({ dev, checkout }) => {
      const { code, err } = dev(["test"], { env: { NPM_BREAKS: "1" } });
      expect(code).toBe(1);
      expect(err).toContain("getaddrinfo failed");
      expect(err).toContain("check that npm reaches its registry");
      expect(existsSync(join(checkout, ".toolchain/lock"))).toBe(false);
    });
  });

  test("./dev refuses a platform without a Bun build", async () => {
    await withSandbox(({ dev, env }) => {
      Bun.spawnSync(["rm", join(env.PATH!, "uname")]);
      script(join(env.PATH!, "uname"), "#!/bin/sh\n[ $1 = -s ] && echo Plan9 || echo mips\n");
      const { code, err } = dev(["test"]);
      expect(code).toBe(1);
      expect(err).toContain("no pinned Bun for Plan9");
    });
  });
});

describe("several ./dev at once", () => {
  test("set up once; the others wait and go on", async () => {
    await withSandbox(async ({ checkout, env, calls }) => {
      const children = Array.from({ length: 5 }, () =>
        Bun.spawn([join(checkout, "dev"), "test"], { env, stdio: ["ignore", "ignore", "ignore"] }),
      );
      expect(await Promise.all(children.map((child) => child.exited))).toEqual([0, 0, 0, 0, 0]);
      expect(calls().filter((line) => line.startsWith("npm"))).toHaveLength(1);
      expect(calls().filter((line) => line.startsWith("bun install"))).toHaveLength(1);
      expect(calls().filter((line) => line.startsWith("bun run"))).toHaveLength(5);
    });
  });

  test("the lock of a process that is gone is taken over", async () => {
    await withSandbox(async ({ dev, checkout, calls }) => {
      const gone = Bun.spawn(["true"]);
      await gone.exited;
      mkdirSync(join(checkout, ".toolchain/lock"), { recursive: true });
      writeFileSync(join(checkout, ".toolchain/lock/owner"), `${gone.pid}\n`);
      expect(dev(["test"]).code).toBe(0);
      expect(calls().at(-1)).toStartWith("bun run --silent test");
      expect(existsSync(join(checkout, ".toolchain/lock"))).toBe(false);
    });
  });

  test("a signal reaches the script itself: nothing stands between", async () => {
    await withSandbox(async ({ checkout, env, calls }) => {
      const path = join(checkout, "package.json");
      const text = readFileSync(path, "utf8");
      writeFileSync(path, text.replace('"scripts": {\n', '"scripts": {\n    "sleepy": "x",\n'));
      const command = [join(checkout, "dev"), "sleepy"];
      const child = Bun.spawn(command, { env, stdio: ["ignore", "ignore", "ignore"] });
      await waitFor(() => calls().some((line) => line.startsWith("bun run --silent sleepy")));
      child.kill("SIGTERM");
      await child.exited;
      expect(child.signalCode).toBe("SIGTERM");
    });
  });
});
