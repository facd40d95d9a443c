// The dashboard in Grafana's grid: `?theme=dark|light&from=MS&to=MS&scrape=MS`. Once all panels are drawn, the attribute
// `data-drawn` of the body says how each has ended.

import { type DataFrame, ThemeContext, createTheme, dateTime, dateTimeFormat } from '@grafana/data';
import { initPluginTranslations } from '@grafana/i18n';
import { Combobox, GlobalStyles, Icon, InlineField, PanelChrome } from '@grafana/ui';
import { useEffect, useMemo, useState } from 'react';
import { createRoot } from 'react-dom/client';
import { panels, rows, title, variables } from './dashboard';
import './page.css';
import { Inside, load } from './panels';
import { type Context, labelValues } from './prometheus';

// The size of Grafana's grid, in pixels.
const COLUMNS = 24;
const CELL = 30;
const GAP = 8;
const MARGIN = 16;
const ALL = '$__all';

interface Loaded {
  frames: DataFrame[];
  error?: string;
}

const asked = new URLSearchParams(location.search);
const theme = createTheme({ colors: { mode: asked.get('theme') === 'light' ? 'light' : 'dark' } });
const to = Number(asked.get('to') ?? Date.now());
const from = Number(asked.get('from') ?? to - 6 * 3_600_000);
const scrapeMs = Number(asked.get('scrape') ?? 15_000);
const range = { from: dateTime(from), to: dateTime(to), raw: { from: dateTime(from), to: dateTime(to) } };

const escaped = (text: string) => text.replace(/[.*+?^${}()|[\]\\]/g, '\\\\$&');

function box({ x, y, w, h }: { x: number; y: number; w: number; h: number }, page: number) {
  const column = (page - 2 * MARGIN - (COLUMNS - 1) * GAP) / COLUMNS;
  return {
    left: x * (column + GAP),
    top: y * (CELL + GAP),
    width: w * (column + GAP) - GAP,
    height: h * (CELL + GAP) - GAP,
  };
}

function Page() {
  const [page] = useState(document.documentElement.clientWidth);
  const [values, setValues] = useState<Record<string, string[]>>({});
  const [picked, setPicked] = useState<Record<string, string>>({});
  const [loaded, setLoaded] = useState<Record<number, Loaded>>({});
  const context: Context = useMemo(() => {
    const chosen = variables.map(({ name, allValue }) => {
      const value = picked[name] ?? ALL;
      return [name, value === ALL ? allValue : escaped(value)];
    });
    return { range, scrapeMs, chosen: Object.fromEntries(chosen) };
  }, [picked]);

  useEffect(() => {
    for (const variable of variables) {
      void labelValues(variable).then((found) => setValues((known) => ({ ...known, [variable.name]: found })));
    }
  }, []);
  useEffect(() => {
    for (const panel of panels) {
      void load(panel, context, box(panel.gridPos, page).width, theme)
        .catch((error: unknown) => ({ frames: [], error: String(error) }))
        .then((frames) => (Array.isArray(frames) ? { frames } : frames))
        .then((result) => setLoaded((known) => ({ ...known, [panel.id]: result })));
    }
  }, [context, page]);
  useEffect(() => {
    if (panels.every((panel) => panel.id in loaded) && variables.every(({ name }) => name in values)) {
      const ends = panels.map((panel) => {
        const { frames, error } = loaded[panel.id] ?? { frames: [] };
        return { panel: panel.title, type: panel.type, series: frames.length, error };
      });
      document.body.dataset.drawn = JSON.stringify(ends);
    }
  }, [loaded, values]);

  const lowest = Math.max(...panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  return (
    <div style={{ padding: `0 ${MARGIN}px ${MARGIN}px` }}>
      <div className="head">
        <h1>{title}</h1>
        {variables.map(({ name, label }) => (
          <InlineField key={name} label={label} style={{ margin: 0 }}>
            <Combobox
              width="auto"
              minWidth={10}
              options={[
                { label: 'All', value: ALL },
                ...(values[name] ?? []).map((value) => ({ label: value, value })),
              ]}
              value={picked[name] ?? ALL}
              onChange={({ value }) => setPicked((known) => ({ ...known, [name]: value }))}
            />
          </InlineField>
        ))}
        <span>
          {dateTimeFormat(range.from)} to {dateTimeFormat(range.to)}
        </span>
      </div>
      <div className="grid" style={{ height: lowest * (CELL + GAP) - GAP }}>
        {rows.map((row) => (
          <div key={row.id} className="line" style={box(row.gridPos, page)}>
            <Icon name="angle-down" /> {row.title}
          </div>
        ))}
        {panels.map((panel) => {
          const { left, top, width, height } = box(panel.gridPos, page);
          const { frames, error } = loaded[panel.id] ?? {};
          return (
            <div key={panel.id} style={{ left, top, width, height }}>
              <PanelChrome
                title={panel.title}
                description={panel.description}
                width={width}
                height={height}
                statusMessage={error}
              >
                {(innerWidth, innerHeight) =>
                  frames && (
                    <Inside panel={panel} frames={frames} context={context} width={innerWidth} height={innerHeight} />
                  )
                }
              </PanelChrome>
            </div>
          );
        })}
      </div>
    </div>
  );
}

await initPluginTranslations('leasehold');
createRoot(document.getElementById('page') as HTMLElement).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <Page />
  </ThemeContext.Provider>
);
