/** How the agent is set up for a number of cycles on one pair of folders. */
export interface Profile {
  readonly name: string;
  /** All blocks fit: what was persisted stays until it is purged. */
  readonly keeps: boolean;
  readonly kv: Readonly<Record<string, string | number>>;
  /** Where commands are sent. `flood`: bytes that go through it, three times what fits. */
  readonly commands?: { readonly pinShare: number; readonly flood: number | null };
}

const ROOMY = { ram_gib: 32 / 1_024, ssd_gib: 128 / 1_024, ssd_ttl: "off", scrub_rate: "64MiB" };

export const PROFILES: readonly Profile[] = [
  { name: "roomy", keeps: true, kv: { ...ROOMY, write_policy: "write_through" } },
  {
    name: "evicting",
    keeps: false,
    kv: { ram_gib: 2 / 1_024, ssd_gib: 4 / 1_024, ssd_ttl: "off", write_policy: "write_through" },
  },
  {
    name: "roomy, write back, threads",
    keeps: true,
    kv: { ...ROOMY, write_policy: "write_back", ssd_io: "threads" },
  },
  {
    name: "expiring",
    keeps: false,
    kv: {
      ram_gib: 2 / 1_024,
      ssd_gib: 8 / 1_024,
      ssd_ttl: "1s",
      write_policy: "write_through_selective",
      scrub_rate: "64MiB",
    },
  },
  {
    name: "write back",
    keeps: false,
    kv: {
      ram_gib: 2 / 1_024,
      ssd_gib: 64 / 1_024,
      ssd_ttl: "off",
      write_policy: "write_back",
      ssd_write_queue: "1MiB",
      ssd_io: "threads",
    },
  },
  {
    name: "roomy, selective",
    keeps: true,
    kv: { ...ROOMY, write_policy: "write_through_selective" },
  },
];

const MIB = 2 ** 20;
/** A few blocks stay in RAM for engines, and what is kept fits all profiles. */
const SMALL = { ram_gib: 4 / 1_024, ssd_gib: 8 / 1_024 };
const [ROOMY_COMMANDS, SMALL_COMMANDS] = [
  { pinShare: 0.015, flood: null },
  { pinShare: 0.2, flood: 36 * MIB },
];

/** With commands blocks go for many reasons: what must stay is what somebody holds. */
export const COMMAND_PROFILES: readonly Profile[] = [
  {
    name: "commands, roomy",
    keeps: false,
    kv: { ...ROOMY, write_policy: "write_through" },
    commands: ROOMY_COMMANDS,
  },
  {
    name: "commands, floods",
    keeps: false,
    kv: { ...SMALL, ssd_ttl: "off", write_policy: "write_through" },
    commands: SMALL_COMMANDS,
  },
  {
    name: "commands, roomy, write back, threads",
    keeps: false,
    kv: { ...ROOMY, write_policy: "write_back", ssd_io: "threads" },
    commands: ROOMY_COMMANDS,
  },
  {
    name: "commands, floods, write back, expiring",
    keeps: false,
    kv: { ...SMALL, ssd_ttl: "1s", write_policy: "write_back", scrub_rate: "64MiB" },
    commands: SMALL_COMMANDS,
  },
];

export interface Places {
  readonly socket: string;
  readonly ssdDir: string;
  readonly indexDir: string;
}

/** The agent's configuration file. */
export function configOf({ kv, commands }: Profile, { socket, ssdDir, indexDir }: Places): string {
  const dirs = { ssd_dir: ssdDir, index_dir: indexDir };
  const own = { lock_memory: "off", huge_pages: "off", blocks_max: 4096, ...dirs };
  const sections = {
    kv: { ...own, ...kv },
    engine: { socket, acquire_deadline: "5s" },
    api: { listen: "127.0.0.1:0", loopback_role: "purge" },
    log: { format: "json" },
    ...(commands === undefined ? {} : { control: shares(commands.pinShare) }),
  };
  return Object.entries(sections)
    .flatMap(([name, keys]) => [
      `[${name}]`,
      ...Object.entries(keys).map(([key, value]) => `${key} = ${JSON.stringify(value)}`),
    ])
    .join("\n");
}

function shares(share: number): Record<string, number> {
  return { pin_share: share, pin_share_owner: share };
}
