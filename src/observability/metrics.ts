import { Counter, Gauge, Histogram, Registry } from "prom-client";
import { assert, loopTurns, type TurnSource } from "../core/index.ts";

/** Each label with all its values, which bound the number of series. Empty: any value. */
type Labels = Readonly<Record<string, readonly string[]>>;

/** Label values in the order of the labels, then the number. */
type Row = readonly [...string[], number];

/**
 * The series of a metric: a number without labels, a number or a table for each value of the first
 * label, or rows. Null: no series.
 */
export type Series = number | null | SeriesTable | readonly Row[];
interface SeriesTable {
  readonly [label: string]: number | SeriesTable;
}

/** The declaration of a metric: what is registered and documented, and where it is read. */
export interface Metric<Source> {
  readonly type: "counter" | "gauge" | "histogram";
  readonly help: string;
  readonly labels: Labels;
  /** Upper bounds of a histogram's buckets. */
  readonly buckets: readonly number[];
  /** Called at each scrape, in one turn for all metrics. A histogram has no series to read. */
  read(source: Source): Series;
}

/** Metrics by name. */
export type MetricTable<Source> = Readonly<Record<string, Metric<Source>>>;

type Read<Source> = (source: Source) => Series;

export function counter<Source>(help: string, read: Read<Source>, labels: Labels = {}) {
  return { type: "counter", help, labels, buckets: [], read } satisfies Metric<Source>;
}

export function gauge<Source>(help: string, read: Read<Source>, labels: Labels = {}) {
  return { type: "gauge", help, labels, buckets: [], read } satisfies Metric<Source>;
}

/** A histogram, to which observers add. */
export function histogram(help: string, buckets: readonly number[], labels: Labels = {}) {
  return { type: "histogram", help, labels, buckets, read: () => null } satisfies Metric<unknown>;
}

/** The metrics of a part, as metrics of the whole. Null: the part does not exist now. */
export function metricsOfPart<Whole, Part, Table extends MetricTable<Part>>(
  pick: (whole: Whole) => Part | null,
  table: Table & MetricTable<Part>,
): Record<keyof Table & string, Metric<Whole>> {
  const read = (metric: Metric<Part>, part: Part | null) =>
    part === null ? null : metric.read(part);
  const metrics = Object.entries<Metric<Part>>(table).map(([name, metric]) => {
    return [name, { ...metric, read: (whole: Whole) => read(metric, pick(whole)) }];
  });
  return Object.fromEntries(metrics);
}

/** The registered metrics of a process. */
export class Metrics<Source> {
  readonly #table: MetricTable<Source>;
  readonly #registry = new Registry();
  readonly #handles = new Map<string, Counter | Gauge | Histogram>();
  readonly #turns = loopTurns.source();
  #building: Promise<string> | null = null;

  constructor(table: MetricTable<Source>) {
    this.#table = table;
    for (const [name, { type, help, labels, buckets }] of Object.entries(table)) {
      const options = { name, help, labelNames: Object.keys(labels), registers: [this.#registry] };
      if (type === "counter") this.#handles.set(name, new Counter(options));
      else if (type === "gauge") this.#handles.set(name, new Gauge(options));
      else this.#handles.set(name, new Histogram({ ...options, buckets: [...buckets] }));
    }
  }

  get contentType(): string {
    return this.#registry.contentType;
  }

  /**
   * Returns a function that adds to the series of a histogram with these label values, in the order
   * of the labels. Create it once and call it often.
   */
  observer(name: string, ...values: readonly string[]): (value: number) => void {
    const handle = this.#handles.get(name);
    assert(handle instanceof Histogram, `${name} is a histogram`);
    const series = handle.labels(this.#labelsOf(name, values));
    return (value) => series.observe(value);
  }

  /**
   * The Prometheus text format. Reads all metrics from `sources`, then formats them in slices of
   * the event loop. Concurrent scrapes share one result.
   */
  text(sources: () => Source): Promise<string> {
    this.#building ??= this.#text(this.#turns, sources).finally(() => {
      this.#building = null;
    });
    return this.#building;
  }

  async #text(turns: TurnSource, sources: () => Source): Promise<string> {
    if (!turns.begin()) await turns.turn();
    const source = sources();
    for (const [name, metric] of Object.entries(this.#table)) this.#set(name, metric.read(source));
    const texts: string[] = [];
    for (const { name } of this.#registry.getMetricsAsArray()) {
      if (!turns.goOn()) await turns.turn();
      texts.push(await this.#registry.getSingleMetricAsString(name));
    }
    turns.goOn();
    return `${texts.join("\n\n")}\n`;
  }

  #set(name: string, series: Series): void {
    const handle = this.#handles.get(name)!;
    if (series === null || handle instanceof Histogram) return;
    // Series with values outside of the declaration, such as workers, end with their subject.
    const isOpen = Object.values(this.#table[name]!.labels).some((values) => values.length === 0);
    if (isOpen) handle.reset();
    for (const [values, value] of rowsOf(series)) {
      const labels = this.#labelsOf(name, values);
      // A counter can only be incremented, but its value is kept elsewhere.
      if (handle instanceof Counter) {
        handle.remove(labels);
        handle.inc(labels, value);
      } else handle.set(labels, value);
    }
  }

  /** Limits the number of series to that in the declaration. */
  #labelsOf(name: string, values: readonly string[]): Record<string, string> {
    const labels = Object.entries(this.#table[name]!.labels);
    assert(labels.length === values.length, `${name} has ${labels.length} labels`);
    const pairs = labels.map(([label, allowed], at): [string, string] => {
      const value = values[at]!;
      const isKnown = allowed.length === 0 || allowed.includes(value);
      assert(isKnown, `${name} has no ${label}="${value}"`);
      return [label, value];
    });
    return Object.fromEntries(pairs);
  }
}

function rowsOf(
  series: NonNullable<Series>,
  before: readonly string[] = [],
): (readonly [readonly string[], number])[] {
  if (typeof series === "number") return [[before, series]];
  if (Array.isArray(series)) {
    return (series as readonly Row[]).map((row) => {
      return [row.slice(0, -1) as string[], row.at(-1) as number];
    });
  }
  return Object.entries(series as SeriesTable).flatMap(([value, inner]) =>
    rowsOf(inner, [...before, value]),
  );
}

/** Renders the reference page of metrics in Markdown. */
export function renderMetricsReference(table: MetricTable<never>): string {
  const labelsOf = (labels: Labels) =>
    Object.entries(labels).map(([label, values]) => {
      const shown = values.map((value) => `\`${value}\``).join(" ");
      return `\`${label}\`: ${shown === "" ? "one value" : shown}`;
    });
  const metrics = Object.entries(table);
  const lines = [
    "# Metrics",
    "",
    "`GET /metrics` answers in the Prometheus text format. Labels have these values and no",
    "others, so the number of series is bounded.",
    "",
    "| name | type | meaning | labels |",
    "|---|---|---|---|",
    ...metrics.map(
      ([name, { type, help, labels }]) =>
        `| \`${name}\` | ${type} | ${help} | ${labelsOf(labels).join("; ")} |`,
    ),
    "",
    "## Histograms",
    "",
    ...metrics
      .filter(([, { type }]) => type === "histogram")
      .map(([name, { buckets }]) => `- \`${name}\`: buckets up to ${buckets.join(", ")}`),
  ];
  return `${lines.join("\n")}\n`;
}
