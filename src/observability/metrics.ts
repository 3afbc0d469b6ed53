import { Counter, Gauge, Histogram, Registry } from "prom-client";
import { assert, loopTurns, type TurnSource } from "../core/index.ts";

/**
 * Labels by name, each with all its values. The number of values bounds the number of series. An
 * empty list allows any value.
 */
type Labels = Readonly<Record<string, readonly string[]>>;

/** Values of the labels in the order of their declaration, then the number. */
type Row = readonly [...string[], number];

/**
 * Current values of a metric: one number if it has no labels, a number or a table per value of the
 * first label, or a list of rows. Null: no series now.
 */
export type Series = number | null | SeriesTable | readonly Row[];
interface SeriesTable {
  readonly [label: string]: number | SeriesTable;
}

/** Declares a metric: its type, labels and help text, and how its value is read. */
export interface Metric<Source> {
  readonly type: "counter" | "gauge" | "histogram";
  readonly help: string;
  readonly labels: Labels;
  /** Upper bounds of the histogram's buckets, in the metric's unit. */
  readonly buckets: readonly number[];
  /**
   * Returns the metric's current values. Called at each scrape, for all metrics in one turn of the
   * event loop. Histograms are not read; observers add to them.
   */
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

/** Declares a histogram. Observers add values to it. */
export function histogram(help: string, buckets: readonly number[], labels: Labels = {}) {
  return { type: "histogram", help, labels, buckets, read: () => null } satisfies Metric<unknown>;
}

/**
 * Converts the metrics of a part of `Whole` to metrics of `Whole`. They have no series while the
 * part is null.
 */
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
   * Returns a function that adds a value to the histogram series with these label values, which are
   * in the order of the labels. Create the function once and call it often.
   */
  observer(name: string, ...values: readonly string[]): (value: number) => void {
    const handle = this.#handles.get(name);
    assert(handle instanceof Histogram, `${name} is a histogram`);
    const series = handle.labels(this.#labelsOf(name, values));
    return (value) => series.observe(value);
  }

  /**
   * Returns all metrics in the Prometheus text format. Reads them from `sources` in one turn, then
   * formats them in event-loop slices. Concurrent scrapes share one result.
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
    // Labels such as workers may have any value. Their old series are removed, so that a series
    // ends when its worker does.
    const isOpen = Object.values(this.#table[name].labels).some((values) => values.length === 0);
    if (isOpen) handle.reset();
    for (const [values, value] of rowsOf(series)) {
      const labels = this.#labelsOf(name, values);
      // The library can only increment a counter, so it is removed and set to the value that is
      // counted elsewhere.
      if (handle instanceof Counter) {
        handle.remove(labels);
        handle.inc(labels, value);
      } else handle.set(labels, value);
    }
  }

  /**
   * Returns the labels of a series. Checks their values, so that there are no more series than
   * declared.
   */
  #labelsOf(name: string, values: readonly string[]): Record<string, string> {
    const labels = Object.entries(this.#table[name].labels);
    assert(labels.length === values.length, `${name} has ${labels.length} labels`);
    const pairs = labels.map(([label, allowed], at): [string, string] => {
      const value = values[at];
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

/** Returns the reference page of metrics in Markdown. */
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
