import { describe, expect, test } from "bun:test";
import { chmodSync } from "node:fs";
import { join } from "node:path";
import { describePython, noteSkip, tempDir } from "../support/index.ts";
import { type AgentKit, openAgent } from "./agent-kit.ts";

const NOBODY = 65_534;
const STRANGERS = 60_001;
const ENGINES = 60_002;

/**
 * An agent whose socket file every user can open, as after a careless chmod. Only the check of the
 * peer's identity is left.
 */
async function openCareless(): Promise<AgentKit> {
  const folder = tempDir();
  const agent = await openAgent({
    socketPath: join(folder, "run", "engine.sock"),
    socketGroup: ENGINES,
  });
  for (const path of [folder, join(folder, "run"), agent.socketPath]) chmodSync(path, 0o777);
  return agent;
}

describePython("access to the socket", (python) => {
  const isRoot = process.getuid!() === 0;
  if (!isRoot) noteSkip("access to the socket", "only root can become another user");

  async function connectAs(path: string, uid: number, gid: number, groups: number[] = []) {
    const script = join(import.meta.dir, "children", "other-user.py");
    const words = [python, script, path, `${uid}`, `${gid}`, groups.join(",")];
    const child = Bun.spawn(words, { stdout: "pipe", stderr: "inherit" });
    return (await new Response(child.stdout).text()).trim();
  }

  describe.skipIf(!isRoot)("is decided", () => {
    test("by user and group, whatever the mode of the file says", async () => {
      await using agent = await openCareless();
      const path = agent.socketPath;
      expect(await connectAs(path, NOBODY, STRANGERS)).toBe("closed");
      expect(agent.server.stats.refusedPeers).toBe(1);
      expect(agent.logs.at(-1)).toMatchObject({
        level: "warn",
        fields: { uid: NOBODY, gid: STRANGERS },
      });
      expect(await connectAs(path, NOBODY, ENGINES)).toBe("answered");
      expect(await connectAs(path, NOBODY, STRANGERS, [7, ENGINES])).toBe("answered");
      expect(await connectAs(path, NOBODY, STRANGERS, [7, 8])).toBe("closed");
      expect(await connectAs(path, 0, STRANGERS)).toBe("answered");
      expect(agent.server.connections).toBe(0);
    });

    test("by the file mode first", async () => {
      const folder = tempDir();
      const socketPath = join(folder, "engine.sock");
      await using agent = await openAgent({ socketPath, socketGroup: ENGINES });
      chmodSync(folder, 0o755);
      expect(await connectAs(socketPath, NOBODY, STRANGERS)).toBe("refused");
      expect(await connectAs(socketPath, NOBODY, ENGINES)).toBe("answered");
      expect(agent.server.stats.refusedPeers).toBe(0);
    });
  });
});
