// Queries as Grafana's data source sends them to Prometheus, and frames as it makes them from the answers.

import { type DataFrame, FieldType, type Labels, rangeUtil, type TimeRange } from '@grafana/data';
import type { Target, Variable } from './dashboard';

interface Sample {
  metric: Labels;
  value?: [number, string];
  values?: Array<[number, string]>;
}

/** What a query depends on besides its target. */
export interface Context {
  range: TimeRange;
  /** The scrape interval, as it is set in Grafana's data source. */
  scrapeMs: number;
  /** The chosen value of each variable, as a regular expression. */
  chosen: Record<string, string>;
}

async function get<T>(path: string, query: Record<string, string>): Promise<T> {
  const response = await fetch(`/prometheus/api/v1/${path}?${new URLSearchParams(query)}`);
  const answer: { data: T; error?: string } = await response.json();
  if (answer.error !== undefined) {
    throw new Error(answer.error);
  }
  return answer.data;
}

/** The values that a variable can have. */
export async function labelValues(variable: Variable): Promise<string[]> {
  const [, metric, label] = /^label_values\((\w+), (\w+)\)$/.exec(variable.query) ?? [];
  if (metric === undefined || label === undefined) {
    throw new Error(`the variable ${variable.name} has no query of a known form: ${variable.query}`);
  }
  return get<string[]>(`label/${label}/values`, { 'match[]': metric });
}

function interpolate(expr: string, { chosen, scrapeMs }: Context, intervalMs: number): string {
  const rate = Math.max(intervalMs + scrapeMs, 4 * scrapeMs);
  return Object.entries({ ...chosen, __rate_interval: `${rate}ms`, __interval: `${intervalMs}ms` }).reduce(
    (text, [name, value]) => text.replaceAll(`$${name}`, value),
    expr
  );
}

function legend(format: string, labels: Labels): string {
  return format.replace(/{{\s*(\w+)\s*}}/g, (_, name: string) => labels[name] ?? '');
}

function series(target: Target, sample: Sample, intervalMs?: number): DataFrame {
  const values: Array<[number, string | null]> = [];
  for (const value of sample.values ?? (sample.value === undefined ? [] : [sample.value])) {
    const [before] = values.at(-1) ?? [];
    if (intervalMs !== undefined && before !== undefined && value[0] - before > 1.5 * (intervalMs / 1000)) {
      // The line has a gap where values are missing.
      values.push([before + intervalMs / 1000, null]);
    }
    values.push(value);
  }
  const name = legend(target.legendFormat, sample.metric);
  return {
    refId: target.refId,
    length: values.length,
    fields: [
      {
        name: 'Time',
        type: FieldType.time,
        config: { interval: intervalMs },
        values: values.map(([time]) => time * 1000),
      },
      {
        name: 'Value',
        type: FieldType.number,
        config: name === '' ? {} : { displayNameFromDS: name },
        labels: sample.metric,
        values: values.map(([, value]) => (value !== null && Number.isFinite(Number(value)) ? Number(value) : null)),
      },
    ],
  };
}

function table(target: Target, samples: Sample[]): DataFrame {
  const labels = [...new Set(samples.flatMap((sample) => Object.keys(sample.metric)))].sort();
  return {
    refId: target.refId,
    length: samples.length,
    fields: [
      {
        name: 'Time',
        type: FieldType.time,
        config: {},
        values: samples.map((sample) => (sample.value?.[0] ?? 0) * 1000),
      },
      ...labels.map((label) => ({
        name: label,
        type: FieldType.string,
        config: {},
        values: samples.map((sample) => sample.metric[label] ?? ''),
      })),
      {
        name: 'Value',
        type: FieldType.number,
        config: {},
        values: samples.map((sample) => Number(sample.value?.[1])),
      },
    ],
  };
}

/** Runs the query of a target for a panel of that width. */
export async function run(target: Target, context: Context, width: number): Promise<DataFrame[]> {
  const { range, scrapeMs } = context;
  const { intervalMs } = rangeUtil.calculateInterval(range, width, `${scrapeMs}ms`);
  const query = interpolate(target.expr, context, intervalMs);
  if (target.instant) {
    const answer = await get<{ result: Sample[] }>('query', { query, time: String(range.to.valueOf() / 1000) });
    if (target.format === 'table') {
      return answer.result.length === 0 ? [] : [table(target, answer.result)];
    }
    return answer.result.map((sample) => series(target, sample));
  }
  const aligned = (time: number) => String((Math.floor(time / intervalMs) * intervalMs) / 1000);
  const answer = await get<{ result: Sample[] }>('query_range', {
    query,
    start: aligned(range.from.valueOf()),
    end: aligned(range.to.valueOf()),
    step: String(intervalMs / 1000),
  });
  return answer.result.map((sample) => series(target, sample, intervalMs));
}
