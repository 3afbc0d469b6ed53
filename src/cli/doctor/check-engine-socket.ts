import { connect } from "node:net";
import { dirname } from "node:path";
import type { Clock } from "../../core/index.ts";
import type { HostFiles } from "./host-files.ts";
import { type Check, ok, warn } from "./report.ts";

const NAME = "engine socket";
const ANSWER_MS = 1_000;
const OTHERS_MASK = 0o007;
const GROUP_WRITE = 0o020;

/** Whether somebody accepts connections on the socket. Never rejects. */
function answers(path: string, clock: Clock): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ path });
    const end = (isThere: boolean) => {
      timer[Symbol.dispose]();
      socket.destroy();
      resolve(isThere);
    };
    const timer = clock.after(ANSWER_MS, () => end(false));
    socket.on("connect", () => end(true));
    socket.on("error", () => end(false));
  });
}

/** The folder of the socket: the agent's own and closed to others; and whether an agent runs. */
export async function checkEngineSocket(
  files: HostFiles,
  socketPath: string,
  uid: number,
  clock: Clock,
): Promise<Check> {
  const folder = dirname(socketPath);
  const stat = files.stat(folder);
  if (stat === null || !stat.isDirectory()) {
    const advice = `install -d -m 0750 ${folder}; in the unit RuntimeDirectory=hearth makes it`;
    return warn(NAME, `${folder} is not there`, advice);
  }
  const mode = stat.mode & 0o7777;
  const found = `${folder} has mode ${mode.toString(8).padStart(4, "0")} and owner ${stat.uid}`;
  if (stat.uid !== uid && uid !== 0) {
    const advice = `run agent and doctor as its owner, or set engine.socket to a folder of ${uid}`;
    return warn(NAME, found, advice);
  }
  if ((mode & OTHERS_MASK) !== 0 || (mode & GROUP_WRITE) !== 0) {
    return warn(NAME, found, `chmod 0750 ${folder}: others could reach or replace the socket`);
  }
  if (files.stat(socketPath) === null) return ok(NAME, `${found}; no agent runs`);
  if (await answers(files.at(socketPath), clock)) return ok(NAME, `${found}; an agent answers`);
  return ok(NAME, `${found}; left over from an agent that is gone, the next one takes it over`);
}
