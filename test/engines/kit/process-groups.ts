const groups = new Set<number>();
const processes = new Set<number>();
let isHooked = false;

function send(id: number, name: NodeJS.Signals): boolean {
  try {
    process.kill(id, name);
    return true;
  } catch {
    // ESRCH: the process, or every process of the group, has ended.
    return false;
  }
}

function killAll(): void {
  for (const group of groups) send(-group, "SIGKILL");
  for (const id of processes) send(id, "SIGKILL");
}

function hook(): void {
  if (isHooked) return;
  isHooked = true;
  process.on("exit", killAll);
  const codes = { SIGINT: 130, SIGTERM: 143, SIGHUP: 129 } as const;
  for (const [name, code] of Object.entries(codes)) process.on(name, () => process.exit(code));
}

/** Processes and process groups that end with this process. */
export const processGroups = {
  watch(group: number): void {
    hook();
    groups.add(group);
  },

  forget(group: number): void {
    groups.delete(group);
  },

  watchProcess(id: number): void {
    hook();
    processes.add(id);
  },

  forgetProcess(id: number): void {
    processes.delete(id);
  },

  /** Signals a group; false if it has no process left. */
  send: (group: number, name: NodeJS.Signals): boolean => send(-group, name),
};
