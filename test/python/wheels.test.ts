import { beforeAll, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { clientLibraryFile, ensureClientLibrary } from "../../scripts/lib/native-build.ts";
import { hostTarget } from "../../scripts/lib/targets.ts";
import { buildWheels, PYTHON_PACKAGES, writeWheels } from "../../scripts/lib/wheels.ts";
import { openAgent } from "../engine/agent-kit.ts";
import { describePython, noteSkip, tempDir } from "../support/index.ts";

const ROOT = join(import.meta.dir, "../..");
const { version } = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8"));
const INSTALL_MS = 120_000;

/** Modules of engines, which the packages need and do not install. */
const ENGINE_MODULES = ["lmcache", "numpy", "sglang", "torch", "vllm"];

interface Finished {
  readonly code: number;
  readonly out: string;
  readonly err: string;
}

async function finish(words: readonly string[], env: Record<string, string>): Promise<Finished> {
  const child = Bun.spawn([...words], { env, stdin: "ignore", stdout: "pipe", stderr: "pipe" });
  const [out, err] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
  ]);
  return { code: await child.exited, out, err };
}

/** Without the checkout: neither its sources nor a library that a variable names. */
function bareEnvironment(more: Record<string, string> = {}): Record<string, string> {
  return { PATH: process.env.PATH ?? "", HOME: process.env.HOME ?? "/", ...more };
}

function missingForInstalls(python: string): string | null {
  const host = hostTarget();
  if (!host.ok) return host.why;
  const asked = Bun.spawnSync([python, "-c", "import ensurepip, venv"]);
  return asked.exitCode === 0 ? null : `${python} has no venv or no ensurepip`;
}

/** The blocks of Python in a page. */
function pythonBlocks(path: string): string[] {
  const blocks = readFileSync(path, "utf8").matchAll(/^```python\n([\s\S]*?)^```$/gm);
  return [...blocks].map(([, code]) => code!);
}

/** The line of a page that installs a connector. */
function installLine(path: string): string {
  const lines = readFileSync(path, "utf8").match(/^pip install .*$/gm) ?? [];
  expect(lines).toHaveLength(1);
  return lines[0]!;
}

/** The output of the examples according to the client's README. */
const EXAMPLE_OUTPUTS = [
  "hit: [True, True]\n",
  "ready: 4 loaded: 4\nblock 0 is now in place 3: True\n",
];

test(
  "every package has the version of package.json, and building twice gives the same bytes",
  async () => {
    const host = hostTarget();
    const targets = host.ok ? [host.target] : [];
    const [once, again] = [await buildWheels(targets), await buildWheels(targets)];
    expect(once.map((wheel) => wheel.fileName)).toContain(
      `hearth_client-${version}-py3-none-any.whl`,
    );
    expect(once).toHaveLength(Object.keys(PYTHON_PACKAGES).length + targets.length);
    expect(again).toEqual(once);
  },
  INSTALL_MS,
);

test("the library needs no other library, as its platform tag promises", async () => {
  const host = hostTarget();
  if (!host.ok) return noteSkip("the library of the Python client", host.why);
  expect(await ensureClientLibrary(host.target)).toMatchObject({ kind: "fresh" });
  const library = readFileSync(clientLibraryFile(host.target));
  for (const name of ["GLIBC_", "libc.so", "ld-linux"]) {
    expect([name, library.includes(name)]).toEqual([name, false]);
  }
});

describePython("wheels in a fresh environment", (python) => {
  const folder = tempDir();
  const why = missingForInstalls(python);
  if (why !== null) noteSkip("wheels in a fresh environment", why);
  const venvPython = join(folder, "venv/bin/python");
  const inVenv = test.skipIf(why !== null);

  beforeAll(async () => {
    const host = hostTarget();
    if (!host.ok || why !== null) return;
    writeWheels(await buildWheels([host.target]), join(folder, "dist"));
    const made = await finish([python, "-m", "venv", join(folder, "venv")], bareEnvironment());
    expect(made).toMatchObject({ code: 0, err: "" });
    const names = Object.keys(PYTHON_PACKAGES).map((name) => name.replace("_", "-"));
    const from = ["--no-index", "--find-links", join(folder, "dist")];
    const pip = [venvPython, "-m", "pip", "install", "--quiet", ...from, ...names];
    const done = await finish(pip, bareEnvironment({ PIP_DISABLE_PIP_VERSION_CHECK: "1" }));
    expect(done).toEqual({ code: 0, out: "", err: "" });
  }, INSTALL_MS);

  inVenv("the examples of the client's README run against an agent", async () => {
    await using agent = await openAgent({ slots: 512 });
    const env = bareEnvironment({ HEARTH_SOCKET: agent.socketPath });
    const outputs: Finished[] = [];
    for (const code of pythonBlocks(join(ROOT, "python/README.md"))) {
      const example = join(folder, "example.py");
      await Bun.write(example, code);
      outputs.push(await finish([venvPython, example], env));
    }
    expect(outputs).toEqual(EXAMPLE_OUTPUTS.map((out) => ({ code: 0, out, err: "" })));
    await agent.untilNothingHeld();
  });

  inVenv("the client has its native library", async () => {
    const code = "import hearth_client.native as n; print(n.NATIVE.path)";
    const run = await finish([venvPython, "-c", code], bareEnvironment());
    expect(run).toMatchObject({ code: 0, err: "" });
    expect(run.out).toStartWith(join(folder, "venv/lib"));
    expect(run.out).toEndWith("_native/libhearth_client.so\n");
  });

  inVenv.each(Object.keys(PYTHON_PACKAGES))("%s is importable and complete", async (name) => {
    // The engines are absent: only their own modules may be missing.
    const code = `
import importlib.metadata as metadata
try:
    import ${name}
except ImportError as error:
    missing = (error.__cause__ or error).name or ""
    if missing.split(".")[0] not in ${JSON.stringify(ENGINE_MODULES)}:
        raise
print(metadata.version("${name}"))
`;
    const run = await finish([venvPython, "-c", code], bareEnvironment());
    expect(run).toEqual({ code: 0, out: `${version}\n`, err: "" });
  });

  const connectors = Object.keys(PYTHON_PACKAGES).filter((name) => name !== "hearth_client");

  inVenv.each(connectors)(
    "the line that installs %s, as its README and its page print it, works beside dist",
    async (name) => {
      const line = installLine(join(ROOT, "python", name, "README.md"));
      const page = join(ROOT, "docs/how-to", `connect-${name.split("_")[1]}.md`);
      expect(installLine(page)).toBe(line);
      const venv = join(folder, `venv-${name}`);
      const env = bareEnvironment({ PIP_DISABLE_PIP_VERSION_CHECK: "1" });
      expect(await finish([python, "-m", "venv", venv], env)).toMatchObject({ code: 0, err: "" });
      const inside = { ...env, PATH: `${join(venv, "bin")}:${env.PATH}` };
      const done = await finish(["sh", "-c", `cd ${folder} && ${line}`], inside);
      expect(done).toMatchObject({ code: 0, err: "" });
      const code = `import importlib.metadata as metadata; print(metadata.version("${name}"))`;
      const run = await finish([join(venv, "bin/python"), "-c", code], env);
      expect(run).toEqual({ code: 0, out: `${version}\n`, err: "" });
    },
    INSTALL_MS,
  );

  inVenv("the archives hold what RECORD says", async () => {
    const code = `
import base64, glob, hashlib, zipfile
for file in sorted(glob.glob("${folder}/dist/*.whl")):
    with zipfile.ZipFile(file) as wheel:
        assert wheel.testzip() is None
        record = next(name for name in wheel.namelist() if name.endswith("/RECORD"))
        listed = set()
        for line in wheel.read(record).decode().splitlines():
            name, digest, size = line.rsplit(",", 2)
            listed.add(name)
            data = wheel.read(name)
            if name == record:
                continue
            got = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == ("sha256=" + got, len(data)), name
        assert listed == set(wheel.namelist()), file
print("complete")
`;
    const run = await finish([venvPython, "-c", code], bareEnvironment());
    expect(run).toEqual({ code: 0, out: "complete\n", err: "" });
  });
});
