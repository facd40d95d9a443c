// Serves the page, what Grafana's components load by fixed paths, and the Prometheus in PROMETHEUS.

import react from '@vitejs/plugin-react';
import { createReadStream, existsSync } from 'node:fs';
import { basename, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';
import { defineConfig, type Plugin } from 'vite';

const here = fileURLToPath(new URL('.', import.meta.url));
const modules = join(here, 'node_modules');
const inter = join(modules, '@fontsource-variable/inter/files');

/** The file of a path below `public/`, as the components name it. */
function asset(path: string): string | undefined {
  const file = normalize(path);
  if (file.startsWith('/build/img/icons/')) {
    return join(modules, '@grafana/ui/dist/public/img/icons', file.slice('/build/img/icons/'.length));
  }
  if (file.startsWith('/fonts/inter/')) {
    return join(inter, `inter-latin-wght-${basename(file).includes('Italic') ? 'italic' : 'normal'}.woff2`);
  }
  return undefined;
}

function assets(): Plugin {
  return {
    name: 'assets-of-grafana',
    configureServer(server) {
      server.middlewares.use('/public', (request, response) => {
        const file = asset(new URL(request.url ?? '/', 'http://page').pathname);
        if (file === undefined || !existsSync(file)) {
          response.writeHead(404).end();
          return;
        }
        response.setHeader('Content-Type', file.endsWith('.svg') ? 'image/svg+xml' : 'font/woff2');
        createReadStream(file).pipe(response);
      });
    },
  };
}

export default defineConfig({
  root: here,
  plugins: [react(), assets()],
  server: {
    host: '127.0.0.1',
    fs: { allow: [join(here, '../..')] },
    proxy: {
      '/prometheus': {
        target: process.env.PROMETHEUS ?? 'http://127.0.0.1:9090',
        rewrite: (path) => path.replace('/prometheus', ''),
      },
    },
  },
});
